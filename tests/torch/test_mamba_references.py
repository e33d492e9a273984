"""The reference functions of the stand-ins: what the functions compute that they stand for."""

from __future__ import annotations

import functools

import pytest
import torch
from mamba_cases import DTYPES, agree, check, exact, normal, wide

from linattn.torch.causal_conv1d import causal_conv1d_interface as conv
from linattn.torch.causal_conv1d import causal_conv1d_varlen as varlen
from linattn.torch.mamba_ssm.ops import selective_scan_interface as scans
from linattn.torch.mamba_ssm.ops.triton import (
    layer_norm,
    layernorm_gated,
    selective_state_update,
)

BATCH, DIM, N, WIDTH, STATE = 2, 6, 7, 4, 3
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def same(function, reference, operands, dtype):
    """Results and gradients, against the reference in float64, and the dtypes of its results."""
    check(function, reference, operands, dtype)
    results = (f(*operands) for f in (function, reference))
    found, known = (x if isinstance(x, tuple) else (x,) for x in results)
    for x, y in zip(found, known, strict=True):
        assert x.dtype is y.dtype and x.shape == y.shape


@dtypes
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("given", [True, False])
def test_convolution(dtype, activation, given):
    def run(function, x, weight, bias, start):
        return function(
            x, weight, bias, initial_states=start, return_final_states=True, activation=activation
        )

    operands = [
        normal(BATCH, DIM, N, dtype=dtype), normal(DIM, WIDTH, dtype=dtype, seed=1),
        normal(DIM, dtype=dtype, seed=2) if given else None,
        normal(BATCH, DIM, WIDTH - 1, dtype=dtype, seed=3) if given else None,
    ]  # fmt: skip
    functions = (functools.partial(run, f) for f in (conv.causal_conv1d_fn, conv.causal_conv1d_ref))
    same(*functions, operands, dtype)
    out = torch.empty(BATCH, DIM, WIDTH - 1, dtype=dtype)
    x, weight = (y.detach() for y in operands[:2])
    states = conv.causal_conv1d_ref(x, weight, None, None, True, out)[1]
    assert states is out and torch.equal(out, x[..., 1 - WIDTH :])


@pytest.mark.parametrize("seen", [None, [0, 9]])
@pytest.mark.parametrize("length", [WIDTH - 1, 6])
@pytest.mark.parametrize("n", [None, 1, 2, 8])
def test_convolution_of_further_tokens(n, length, seen):
    x = normal(BATCH, DIM, *([] if n is None else [n])).detach()
    weight, bias = normal(DIM, WIDTH, seed=1).detach(), normal(DIM, seed=2).detach()
    seen, found = None if seen is None else torch.tensor(seen, dtype=torch.int32), []
    for function in (conv.causal_conv1d_update, conv.causal_conv1d_update_ref):
        state = normal(BATCH, DIM, length, seed=3).detach()
        found.append((function(x, state, weight, bias, "silu", seen), state))
    for a, b in zip(*found, strict=True):
        assert agree(a, b, torch.float64)


def test_states_of_packed_sequences():
    x, bounds = normal(9, DIM), torch.tensor([0, 2, 2, 3, 9])
    for length in (1, 3, 7):
        given = (x, bounds, length)
        states = varlen.causal_conv1d_varlen_states_ref(*given)
        assert torch.equal(varlen.causal_conv1d_varlen_states(*given), states)


@dtypes
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("softplus", [True, False])
def test_step(dtype, heads, softplus):
    lead, real = (BATCH, heads, DIM), wide(dtype)
    groups = min(heads, 2)

    def run(function, start, *given):
        state = start.clone()
        return function(state, *given, dt_softplus=softplus), state

    operands = [
        normal(*lead, STATE, dtype=real), normal(*lead, dtype=dtype, seed=1),
        normal(*lead, dtype=dtype, seed=2), -normal(heads, DIM, STATE, dtype=real, seed=3).exp(),
        normal(BATCH, groups, STATE, dtype=dtype, seed=4),
        normal(BATCH, groups, STATE, dtype=dtype, seed=5), normal(*lead[1:], dtype=real, seed=6),
        normal(*lead, dtype=dtype, seed=7), normal(*lead[1:], dtype=real, seed=8),
    ]  # fmt: skip
    if not softplus:
        operands[2], operands[8] = operands[2].abs().detach(), None
    m = selective_state_update
    functions = [
        functools.partial(run, f) for f in (m.selective_state_update, m.selective_state_update_ref)
    ]
    same(*functions, operands, dtype)
    if heads == 1:
        flat = [x if x is None else x[0] if i in (3, 6, 8) else x[:, 0]
                for i, x in enumerate(operands)]  # fmt: skip
        found = [f(*(x if x is None else x.detach() for x in flat)) for f in functions]
        for a, b in zip(*found, strict=True):
            assert a.shape == b.shape and agree(a, exact(b), dtype)


def test_inner():
    """All arguments have the places of those of mamba_inner_fn."""
    shapes = [
        (BATCH, 2 * DIM, N), (DIM, 1, WIDTH), (DIM,), (2 + STATE, DIM), (DIM, 2), (5, DIM), (5,),
        (DIM, STATE), (BATCH, STATE, N), None, (DIM,), (DIM,), None, (STATE,),
    ]  # fmt: skip
    operands = [x and normal(*x, seed=i).detach() for i, x in enumerate(shapes)]
    operands[7] = -operands[7].exp()
    for softplus in (True, False):
        operands[11] = operands[11].abs() * 100
        found = scans.mamba_inner_ref(*operands, softplus)
        assert torch.equal(found, scans.mamba_inner_fn(*operands, softplus))


@dtypes
@pytest.mark.parametrize("group", [None, 2])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_gated_norm(dtype, group, before, gated):
    operands = [
        normal(BATCH, DIM, dtype=dtype), normal(DIM, dtype=dtype, seed=1),
        normal(DIM, dtype=dtype, seed=2),
        normal(BATCH, DIM, dtype=dtype, seed=3) if gated else None,
    ]  # fmt: skip
    functions = (
        functools.partial(f, eps=1e-5, group_size=group, norm_before_gate=before)
        for f in (layernorm_gated.rmsnorm_fn, layernorm_gated.rms_norm_ref)
    )
    same(*functions, operands, dtype)
    kept = layernorm_gated.rms_norm_ref(*operands, upcast=False)
    assert kept.dtype is dtype


@dtypes
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("branch", [True, False])
def test_norm(dtype, kind, branch):
    operands = [
        normal(BATCH, DIM, dtype=dtype), normal(DIM, dtype=dtype, seed=1),
        normal(DIM, dtype=dtype, seed=2), normal(BATCH, DIM, dtype=wide(dtype), seed=3),
    ]  # fmt: skip
    if branch:
        operands += [normal(BATCH, DIM, dtype=dtype, seed=4), normal(DIM, dtype=dtype, seed=5),
                     normal(DIM, dtype=dtype, seed=6)]  # fmt: skip
    function = getattr(layer_norm, f"{kind}_fn")
    reference = functools.partial(getattr(layer_norm, f"{kind}_ref"), upcast=True)
    functions = (functools.partial(f, eps=1e-5, prenorm=True) for f in (function, reference))
    same(*functions, operands, dtype)
    assert getattr(layer_norm, f"{kind}_ref")(*operands[:3]).dtype is dtype


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norm_with_dropout_and_scales_of_rows(kind):
    x, x1, weight = normal(BATCH, DIM), normal(BATCH, DIM, seed=1), normal(DIM, seed=2)
    function, reference = (getattr(layer_norm, f"{kind}_{x}") for x in ("fn", "ref"))
    y, kept, kept1 = function(
        x, weight, None, x1=x1, dropout_p=0.4, return_dropout_mask=True, eps=1e-5
    )
    options = {"dropout_p": 0.4, "dropout_mask": kept, "eps": 1e-5}
    assert agree(y, reference(x, weight, None, x1=x1, dropout_mask1=kept1, **options), x.dtype)
    scales = normal(BATCH, seed=3)
    known = reference(x, weight, None, rowscale=scales, eps=1e-5)
    assert agree(function(x, weight, None, rowscale=scales, eps=1e-5), known, x.dtype)
    torch.manual_seed(0)
    assert not torch.equal(
        reference(x, weight, None, dropout_p=0.4), reference(x, weight, None, dropout_p=0.4)
    )
