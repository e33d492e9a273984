"""The stand-in for causal_conv1d against loops over its equation."""

from functools import partial
from itertools import product

import pytest
import torch
from mamba_cases import DTYPES, agree, check, convolved, errors, exact, normal
from slow import looped, slow

from linattn.torch.causal_conv1d import (
    causal_conv1d_fn,
    causal_conv1d_interface,
    causal_conv1d_update,
    causal_conv1d_varlen_states,
)
from linattn.torch.causal_conv1d.causal_conv1d_interface import (
    causal_conv1d_ref,
    causal_conv1d_update_ref,
)
from linattn.torch.causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states_ref

BATCH, DIM, N, WIDTH = 3, 5, 9, 4
SEQ_IDX = torch.tensor(
    [[0, 0, 0, 1, 1, 2, 2, 2, -1], [0] * 9, [0, 1, 2, 3, 3, 4, 4, -1, -1]], dtype=torch.int32
)


def operands(dtype, *, channels_last=False, bias=True, initial=True):
    x = normal(BATCH, DIM, N, dtype=dtype)
    if channels_last:
        x = normal(BATCH, N, DIM, dtype=dtype).detach().mT.requires_grad_()
    return [
        x, normal(DIM, WIDTH, dtype=dtype, seed=1),
        normal(DIM, dtype=dtype, seed=2) if bias else None,
        normal(BATCH, DIM, WIDTH - 1, dtype=dtype, seed=3) if initial else None,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("given", [True, False])
def test_results_states_and_gradients(dtype, channels_last, activation, given):
    def run(x, weight, bias, initial, function=causal_conv1d_fn):
        more = {"return_final_states": True, "activation": activation}
        return function(x, weight, bias, initial_states=initial, **more)

    def known(x, weight, bias, initial):
        return convolved(x, weight, bias, initial, silu_=activation is not None, states=True)

    args = operands(dtype, channels_last=channels_last, bias=given, initial=given)
    check(run, known, args, dtype, partial(run, function=causal_conv1d_ref))
    o, state = run(*args)
    assert o.dtype is state.dtype is dtype and o.stride() == args[0].stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("initial", [False, True])
def test_sequences_are_separated(dtype, initial):
    def run(x, weight, bias, initial):
        return causal_conv1d_fn(x, weight, bias, SEQ_IDX, initial, activation="silu")

    def known(x, weight, bias, initial):
        return convolved(x, weight, bias, initial, seq_idx=SEQ_IDX, silu_=True)

    check(run, known, operands(dtype, initial=initial), dtype)


def test_a_weight_of_another_dtype():
    x, weight, bias, _ = operands(torch.bfloat16)
    weight, bias = weight.detach().double(), bias.detach().float()
    o = causal_conv1d_fn(x, weight, bias)
    assert o.dtype is torch.bfloat16
    assert agree(o, convolved(*map(exact, (x, weight, bias))), torch.bfloat16)


@pytest.mark.parametrize("function", [causal_conv1d_fn, causal_conv1d_ref])
@pytest.mark.parametrize("dtype", DTYPES)
def test_final_states_are_written(function, dtype):
    x, weight, _, _ = operands(dtype, bias=False)
    out = torch.empty(BATCH, DIM, WIDTH - 1, dtype=dtype)
    _, states = function(x.detach(), weight, return_final_states=True, final_states_out=out)
    assert states is out and torch.equal(out, x.detach()[..., 1 - WIDTH :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [WIDTH - 1, WIDTH, 7])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_update(dtype, length, n):
    x, weight, bias, _ = operands(dtype)
    x = x[..., :n]
    state = normal(BATCH, DIM, length, dtype=dtype, seed=4).detach()
    before = state.clone()
    o = causal_conv1d_update(x, state, weight, bias, "silu")
    known = convolved(*map(exact, (x, weight, bias, before[..., length - WIDTH + 1 :])), silu_=True)
    assert agree(o, known, dtype) and o.dtype is dtype
    assert torch.equal(state, torch.cat([before, x], -1)[..., -length:])


@pytest.mark.parametrize("seen", [None, [0, 9, 2]])
@pytest.mark.parametrize("length", [WIDTH - 1, 6])
@pytest.mark.parametrize("n", [None, 1, 2, 8])
def test_the_reference_of_the_update(n, length, seen):
    x, weight, bias, _ = (y if y is None else y.detach() for y in operands(torch.float64))
    x = x[..., 0] if n is None else x[..., :n]
    seen, found = None if seen is None else torch.tensor(seen, dtype=torch.int32), []
    for function in (causal_conv1d_update, causal_conv1d_update_ref):
        state = normal(BATCH, DIM, length, seed=3).detach()
        found.append((function(x, state, weight, bias, "silu", seen), state))
    for a, b in zip(*found, strict=True):
        assert agree(a, b, torch.float64)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_update_of_one_token_without_an_axis(requires_grad):
    x, weight, bias, start = operands(torch.float32)
    x = x.detach()[..., 0].requires_grad_(requires_grad)
    state = start.detach().clone()
    o = causal_conv1d_update(x, state, weight, bias)
    assert o.shape == x.shape and torch.equal(state[..., -1], x)
    known = convolved(*map(exact, (x[..., None], weight, bias, start)))[..., 0]
    assert agree(o, known, torch.float32)
    if requires_grad:
        (g,) = torch.autograd.grad(o.sum() + state.sum(), x)
        assert agree(g, weight[:, -1].double() + torch.ones_like(g), torch.float32)


@pytest.mark.parametrize("n", [1, 3, 8])  # more than the buffer holds
def test_a_circular_buffer(n):
    """Sequences of unlike lengths give the results and states of buffers that are shifted."""
    length, seen = 6, torch.tensor([0, 4, 11], dtype=torch.int32)
    x, weight, bias, _ = operands(torch.float64)
    shifted = normal(BATCH, DIM, length, seed=5).detach()
    circular = torch.empty_like(shifted)
    for row, count in enumerate(seen):  # the token before ``count`` is the last one shifted in
        for age in range(length):
            circular[row, :, (int(count) - 1 - age) % length] = shifted[row, :, length - 1 - age]
    o = causal_conv1d_update(x[..., :n], circular, weight, bias, cache_seqlens=seen)
    known = causal_conv1d_update(x[..., :n], shifted, weight, bias)
    assert agree(o, known, torch.float64)
    for row, count in enumerate(seen):
        for age in range(length):
            place = (int(count) + n - 1 - age) % length
            assert torch.equal(circular[row, :, place], shifted[row, :, length - 1 - age])


@pytest.mark.parametrize("function", [causal_conv1d_update, causal_conv1d_update_ref])
def test_gradients_through_a_circular_buffer(function):
    """Where token 0 is at its beginning, its order is that of a buffer that is shifted."""
    length, found = 6, []
    for seen in (None, torch.tensor([0, 6, 12], dtype=torch.int32)):
        x, weight, bias, _ = operands(torch.float64)
        start = normal(BATCH, DIM, length, seed=5)
        state = start.clone()
        o = function(x[..., :3], state, weight, bias, "silu", seen)
        given = (x, weight, bias, start)
        found.append(torch.autograd.grad(o.square().sum() + state.square().sum(), given))
    for a, b in zip(*found, strict=True):
        assert agree(a, b, torch.float64)


def test_rows_of_a_larger_state():
    x, weight, bias, _ = operands(torch.float32)
    pool, rows = normal(6, DIM, WIDTH, seed=6).detach().float(), torch.tensor([4, -1, 2])
    before = pool.clone()
    o = causal_conv1d_update(x[..., :2], pool, weight, bias, "silu", conv_state_indices=rows.int())
    chosen = before[rows]
    known = causal_conv1d_update(x[..., :2], chosen, weight, bias, "silu")
    assert torch.equal(o[[0, 2]], known[[0, 2]]) and not o[1].any()
    before[[4, 2]] = chosen[[0, 2]].detach()
    assert torch.equal(pool, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *slow(torch.float16)])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, *slow(torch.float16)])
@looped(length=[WIDTH - 1, WIDTH, WIDTH + 3])
@looped(axis=[True, False])
@looped(indices=[None, [4, 0, 2], [4, -1, 2]])
def test_one_token_in_place(dtype, kept, length, axis, indices):
    """States of any length and of 16 bits, with the bits of the way that gradients take."""
    x = normal(BATCH, DIM, *(1,) * axis, dtype=torch.float32).detach().to(dtype)
    weight = normal(DIM, WIDTH, dtype=torch.float32, seed=1).detach().to(dtype)
    bias = normal(DIM, dtype=torch.float32, seed=2).detach().to(dtype)
    rows = BATCH if indices is None else 6
    state = normal(rows, DIM, length, dtype=torch.float32, seed=3).detach().to(kept)
    if indices is not None:
        indices = torch.tensor(indices, dtype=torch.int32)

    def run(weight):
        own = state.clone()
        o = causal_conv1d_update(x, own, weight, bias, "silu", conv_state_indices=indices)
        return o.detach(), own.detach()

    with torch.no_grad():
        o, after = run(weight)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(causal_conv1d_interface, "moved_on", lambda *args: NotImplemented)
            expected, last = run(weight)
    assert o.dtype is dtype
    assert torch.equal(o, expected)
    assert torch.equal(after, last)
    assert not torch.equal(after, state)


def test_states_of_packed_sequences():
    x, bounds = normal(7, DIM).detach(), torch.tensor([0, 2, 2, 7], dtype=torch.int32)
    for length in (1, 3, 7):
        known = causal_conv1d_varlen_states_ref(x, bounds, length)
        assert torch.equal(causal_conv1d_varlen_states(x, bounds, length), known)
    states = causal_conv1d_varlen_states(x, bounds, 3)
    for i, (begin, end) in enumerate([(0, 2), (2, 2), (2, 7)]):
        last = torch.cat([x.new_zeros(3, DIM), x[begin:end]])[-3:]
        assert torch.equal(states[i], last.T)


X, W = torch.zeros(2, 3, 5), torch.zeros(3, 4)
IDX = torch.zeros(2, 5, dtype=torch.int32)
ERRORS = {
    "x has shape (3, 5)": lambda: causal_conv1d_fn(X[0], W),
    "x is a list": lambda: causal_conv1d_fn([1.0], W),
    "weight has shape (4, 4)": lambda: causal_conv1d_fn(X, torch.zeros(4, 4)),
    "bias has shape (4,)": lambda: causal_conv1d_fn(X, W, torch.zeros(4)),
    "activation is 'relu'": lambda: causal_conv1d_fn(X, W, activation="relu"),
    "seq_idx has shape (2, 4)": lambda: causal_conv1d_fn(X, W, seq_idx=IDX[:, 1:]),
    "seq_idx has dtype torch.float32": lambda: causal_conv1d_fn(X, W, seq_idx=IDX.float()),
    "seq_idx is 0 in two separate places": lambda: causal_conv1d_fn(
        X, W, seq_idx=torch.tensor([[0, 1, 0, 2, 2]] * 2)
    ),
    "seq_idx and return_final_states": lambda: causal_conv1d_fn(
        X, W, seq_idx=IDX, return_final_states=True
    ),
    "initial_states has shape (2, 3, 4)": lambda: causal_conv1d_fn(
        X, W, initial_states=torch.zeros(2, 3, 4)
    ),
    "conv_state has shape (2, 3, 2)": lambda: causal_conv1d_update(X, torch.zeros(2, 3, 2), W),
    "cache_seqlens has shape (3,)": lambda: causal_conv1d_update(
        X, torch.zeros(2, 3, 4), W, cache_seqlens=torch.zeros(3, dtype=torch.int32)
    ),
    "conv_state_indices has shape (1,)": lambda: causal_conv1d_update(
        X, torch.zeros(9, 3, 4), W, conv_state_indices=torch.zeros(1, dtype=torch.int32)
    ),
    "causal_conv1d_varlen_states: x has shape (2, 3, 5)": lambda: causal_conv1d_varlen_states(
        X, torch.tensor([0, 2]), 3
    ),
}

test_errors = errors(ERRORS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_states_by_tap_have_the_bits_of_others(dtype, width):
    """Also with an input that the filters do not reach, and of rows."""
    for more, rows in product((0, 1), (None, torch.tensor([2, 0]))):
        x, weight, bias = (torch.randn(s).to(dtype) for s in ((2, 150), (150, width), (150,)))
        state = torch.randn(3 if rows is not None else 2, 150, width - 1 + more).to(dtype)
        given = {"activation": "silu", "conv_state_indices": rows}
        results = []
        for order in (lambda y: y.clone(), lambda y: y.mT.contiguous().mT):
            s = order(state)
            results.append((causal_conv1d_update(x, s, order(weight), bias, **given), s))
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b)
