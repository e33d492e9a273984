"""Sequences in parts: cut anywhere, packed, shorter than their arrays, and token by token."""

from itertools import pairwise

import numpy as np
import pytest
from bounds import close, roundings
from slow import each, grid, looped, slow
from states import assert_close, assert_same, flat
from table import (
    ALL,
    BLOCKS,
    CASES,
    MAPPED,
    MORE,
    OTHER_BLOCKS,
    ROUNDINGS,
    allowed,
    apply,
    rows,
    same,
    wide,
)  # fmt: skip

from linattn import reference

N = 70
EACH = each(CASES + MORE)
#: The ends of more sequences than most of them have tokens.
MANY = [0, *np.sort(np.random.default_rng(1).integers(0, N, 40)).tolist(), N]
DTYPES = looped(dtype=["float32", "float64"])
#: Those whose keys can end before the arrays do.
WITH_LENGTHS = [x for x in ALL + BLOCKS + OTHER_BLOCKS + MAPPED[1:] if x.row and x.row.keys]


def per_token(case):
    """The operands of tokens; the gradients of the others are sums over them."""
    return [x for x in case.letters if case.letters[x][0] == "n"]


@EACH
@DTYPES
def test_a_cut_anywhere(case, dtype):
    """A sequence continues from its state, and its gradients from those of the state."""
    gates = "resets" if dtype == "float64" else "weak"
    operands = case.operands((2,), N, d=6, m=5, dtype=dtype, gates=gates)
    start, grad = (case.state((2,), dtype=dtype, seed=x, d=6, m=5) for x in (1, 2))
    o, last = case.forward(operands, initial_state=start)
    *expected, dstart = case.backward(operands, initial_state=start, grad_state=grad)
    atol = allowed(*expected, *flat(dstart))
    for t in (0, 1, 16, 33, 64, N):
        parts = [case.tokens(operands, 0, t), case.tokens(operands, t, N)]
        first, state = case.forward(parts[0], initial_state=start)
        second, end = case.forward(parts[1], initial_state=state)
        whole = [second, first] if case.reverse else [first, second]
        close(np.concatenate(whole, 1), o, atol=allowed(o, *flat(last)))
        assert_close(end, last, atol=allowed(o, *flat(last)))
        *late, dstate = case.backward(parts[1], initial_state=state, grad_state=grad)
        *early, dfirst = case.backward(parts[0], initial_state=start, grad_state=dstate)
        for name, x, y, z in zip(case.letters, early, late, expected, strict=True):
            pair = [y, x] if case.reverse else [x, y]
            joined = np.concatenate(pair, 1) if name in per_token(case) else x + y
            close(joined, z, atol=atol)
        assert_close(dfirst, dstart, atol=atol)


@each(CASES + BLOCKS + OTHER_BLOCKS + MORE)
@DTYPES
@looped(bounds=[[0, 0, 17, 50, 50, N], MANY])
def test_packed_sequences(case, dtype, bounds):
    """Each has the bits that it has alone, states and gradients too; some are empty."""
    gates = "resets" if dtype == "float64" else "weak"
    operands = case.operands((2,), N, d=6, m=5, dtype=dtype, gates=gates)
    lead = (2, len(bounds) - 1)
    start, grad = (case.state(lead, dtype=dtype, seed=x, d=6, m=5) for x in (1, 2))
    o, last = case.forward(operands, initial_state=start, cu_seqlens=bounds)
    packed = {"initial_state": start, "cu_seqlens": bounds}
    *grads, dstart = case.backward(operands, **packed, grad_state=grad)
    sums = dict.fromkeys(case.letters, 0)
    for r, (begin, end) in enumerate(pairwise(bounds)):
        own = case.rows(operands, begin, end)
        state, cotangent = (rows(y, r, 1) for y in (start, grad))
        alone, after = case.forward(own, initial_state=state)
        assert_same(o[:, begin:end], alone)
        assert same(rows(last, r, 1), after)
        *some, dstate = case.backward(own, initial_state=state, grad_state=cotangent)
        assert same(rows(dstart, r, 1), dstate)
        for name, x, y in zip(case.letters, grads, some, strict=True):
            if name in per_token(case):
                assert_same(x[:, begin:end], y)
            else:
                sums[name] = y + sums[name]
    for name, x in zip(case.letters, grads, strict=True):
        if name not in per_token(case):
            close(x, sums[name], atol=roundings(lead[1] * ROUNDINGS, *grads))


@EACH
@looped(options=[{}, {"cu_seqlens": [0, 17, 50, 50, N]}])
def test_one_state_for_several_heads(case, options):
    """The bits of as many copies; its gradient is the sum of theirs."""
    lead, r = (2, 3), (4,) if options else ()
    operands, grad = case.operands(lead, N), case.state((*lead, *r), seed=2)
    for own in ((), (1,), (3,), (1, 3), (2, 1)):
        few = case.state((*own, *r))
        whole = apply(
            lambda x, own=own: np.broadcast_to(x, (*lead, *r, *x.shape[len(own + r) :])).copy(), few
        )
        one = case.forward(operands, initial_state=few, **options)
        assert_same(one, case.forward(operands, initial_state=whole, **options))
        if not r and not case.reverse:
            assert_same(case.one_step(operands, 0, few), case.one_step(operands, 0, whole))
        more = options | {"grad_state": grad}
        *some, dfew = case.backward(operands, initial_state=few, **more)
        *grads, dwhole = case.backward(operands, initial_state=whole, **more)
        assert_same(some, grads)
        for x, y, given in zip(flat(dfew), flat(dwhole), flat(few), strict=True):
            assert x.shape == given.shape
            axes = tuple(i for i in (0, 1) if (1, 1, *own)[len(own) + i] == 1)
            close(x, y.sum(axes).reshape(x.shape), atol=allowed(x, y, sides=12))


@EACH
@looped(value=[np.nan, np.inf])
def test_a_sequence_knows_nothing_of_its_neighbours(case, value):
    """Whatever the operands of one of them hold: the results of the others have the same bits."""
    bounds = [0, 15, 15, 31, 31, 40, 60, N]
    operands, start = case.operands((), N, d=6, m=5), case.state((7,), d=6, m=5)
    more = {"cu_seqlens": bounds, "initial_state": start, "grad_state": start}
    expected = case.results(operands, **more)
    for r, (begin, end) in enumerate(pairwise(bounds)):
        others = np.delete(np.arange(7), r)
        tokens = np.delete(np.arange(N), np.s_[begin:end])
        for name in (x for x in operands if x == "grad_out" or x in per_token(case)):
            wild = operands | {name: operands[name].copy()}
            wild[name][begin:end] = value
            for x, y in zip(case.results(wild, **more), expected, strict=True):
                rest = {7: others, N: tokens}.get(len(x) if x.ndim else 0)
                if rest is not None:
                    assert_same(x[rest], y[rest], f"{name} {r}")


@each(WITH_LENGTHS)
@pytest.mark.parametrize("bad", [np.nan, *slow(0.0, np.inf)])
@looped(options=[{}, {"cu_seqlens": [0, 3, 3, 50, N]}])
@DTYPES
def test_key_lengths(case, bad, options, dtype):
    """What lies past them is not read, and its gradients are zeros; they count along all of n."""
    lengths = [40, 0, 64]
    operands = case.operands((3,), N, s=N, d=6, m=5, dtype=dtype)
    padded = [x for x in case.letters if case.letters[x][0] in "ns" and x not in "qxCz"]
    clean = {x: y.copy() for x, y in operands.items()}
    for name in padded:
        for b, length in enumerate(lengths):
            clean[name][b, length:] = 0
            operands[name][b, length:] = bad
    more = {"key_lengths": lengths}
    if case.held:
        start = case.state((3, 4) if options else (3,), dtype=dtype, d=6, m=5)
        more |= options | {"initial_state": start, "grad_state": start}
    assert_same(case.results(clean, key_lengths=N), case.results(clean))
    got = case.results(operands, **more)
    expected = case.results(wide(clean), reference, **wide(more))
    count = len(got) - len(flat(case.backward(clean, **more)))
    for part in (slice(count), slice(count, None)):
        atol = roundings(ROUNDINGS, *expected[part], dtype=dtype)
        assert_close(got[part], expected[part], atol=atol)
    for name, x in zip(case.letters, got[count:], strict=False):
        if name in padded:
            assert not any(x[b, length:].any() for b, length in enumerate(lengths))


@EACH
@grid(
    lambda dtype, in_place: in_place or dtype == "float32",
    dtype=["float16", "float32", "float64"],
    in_place=[False, True],
)
def test_steps(case, dtype, in_place):
    """Token by token, in place or not, the same as all at once."""
    if case.reverse:
        return
    operands = case.operands((2,), N, d=6, m=5, dtype=dtype)
    start = case.state((2,), dtype=dtype, seed=1, d=6, m=5)
    whole, last = case.forward(operands, initial_state=start)
    state, slack = apply(np.array, start), 4 * allowed(*flat(last))
    for t in range(N):
        before = state
        o, state = case.one_step(operands, t, state, in_place=in_place)
        assert o.dtype == whole.dtype
        assert all((x is y) is in_place for x, y in zip(flat(state), flat(before), strict=True))
        unit = roundings(2, whole, dtype=whole.dtype)
        close(wide(o), wide(whole[:, t]), atol=slack + unit)
    assert_close(state, last, atol=slack)


@each(CASES)
def test_a_state_of_zeros_changes_no_bit(case):
    """That of no tokens; and asking for the last state changes no output."""
    operands = case.operands((2,), N)
    expected = case.call(operands)
    zero = case.forward(case.tokens(operands, 0, 0))[1]
    o, _ = case.forward(operands, initial_state=zero)
    assert_same(o, expected)
    assert_same(case.forward(operands)[0], expected)
    grad = case.state((2,), seed=2)
    grads = case.backward(operands, initial_state=zero, grad_state=grad)
    assert_same(case.backward(operands, grad_state=grad), grads)


@EACH
@looped(lead=[(), (2, 3)])
def test_no_sequence_at_all(case, lead):
    operands, cuts = case.operands(lead, 0), {"cu_seqlens": [0]}
    o, end = case.forward(operands, **cuts)
    assert o.shape == operands["grad_out"].shape
    own = flat(case.state(lead))
    assert [x.shape for x in flat(end)] == [(*lead, 0, *x.shape[len(lead) :]) for x in own]
    for more in ({}, {"initial_state": end, "grad_state": end}):
        grads = case.backward(operands, **cuts, **more)
        for x, name in zip(grads, case.letters, strict=False):
            assert x.shape == operands[name].shape
        assert not more or [x.shape for x in flat(grads[-1])] == [x.shape for x in flat(end)]
