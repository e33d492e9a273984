"""One token of the scans of the stand-in for mamba_ssm against its equation."""

from functools import partial

import pytest
import torch
from mamba_cases import DTYPES, advanced, agree, check, errors, exact, normal, wide
from torch.nn.functional import silu, softplus

from linattn.torch.mamba_ssm.ops.triton.selective_state_update import (
    selective_state_update,
    selective_state_update_ref,
)

BATCH, HEADS, HEADDIM, STATE, GROUPS = 2, 4, 5, 3, 2


def step_twin(h, x, dt, A, B, C, D, z, bias):
    group = torch.arange(x.shape[1]) * B.shape[1] // x.shape[1]
    h, y = advanced(h, x, softplus(dt + bias), A, B[:, group, None], C[:, group, None])
    return (y + D * x) * silu(z), h


def step_operands(dtype, *, tied, heads):
    real, lead = wide(dtype), (BATCH, heads, HEADDIM)

    def rates(*shape, seed, kind):
        x = normal(*shape, dtype=kind, seed=seed).detach()
        return x[..., :1].expand(shape) if tied else x

    A = -rates(*lead[1:], STATE, seed=2, kind=real).exp()
    if tied:
        A = A[:, :1, :1].expand(*lead[1:], STATE)
    groups = min(GROUPS, heads)
    return [
        normal(*lead, dtype=dtype), rates(*lead, seed=1, kind=dtype), A,
        normal(BATCH, groups, STATE, dtype=dtype, seed=3),
        normal(BATCH, groups, STATE, dtype=dtype, seed=4), normal(*lead[1:], dtype=real, seed=5),
        normal(*lead, dtype=dtype, seed=6), rates(*lead[1:], seed=7, kind=real),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True], ids=["Mamba", "Mamba-2"])
@pytest.mark.parametrize("gradients", [False, True])
def test_step(dtype, tied, gradients):
    operands = step_operands(dtype, tied=tied, heads=HEADS)
    start = normal(BATCH, HEADS, HEADDIM, STATE, dtype=wide(dtype), seed=8)

    def run(start, *given):
        state = start.clone() if gradients else start.detach().clone()
        y = selective_state_update(state, *given, dt_softplus=True)
        return y, state

    if gradients:
        check(run, step_twin, [start, *operands], dtype)
        return
    with torch.no_grad():
        for found, known in zip(
            run(start, *operands), step_twin(*map(exact, (start, *operands))), strict=True
        ):
            assert agree(found, known, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("softplus", [True, False])
def test_the_reference_of_the_step(dtype, heads, softplus):
    def run(function, start, *given):
        state = start.clone()
        return function(state, *given, dt_softplus=softplus), state

    start = normal(BATCH, heads, HEADDIM, STATE, dtype=wide(dtype), seed=8)
    operands = [start, *step_operands(dtype, tied=False, heads=heads)]
    if not softplus:
        operands[2], operands[8] = operands[2].abs(), None
    both = [partial(run, f) for f in (selective_state_update, selective_state_update_ref)]
    check(both[0], both[1], operands, dtype, both[1])
    if heads == 1:
        flat = [x if x is None else x[0] if i in (3, 6, 8) else x[:, 0]
                for i, x in enumerate(operands)]  # fmt: skip
        for a, b in zip(
            *(f(*(x if x is None else x.detach() for x in flat)) for f in both), strict=True
        ):
            assert a.shape == b.shape and agree(a, exact(b), dtype)


def test_step_without_heads_of_some_rows():
    operands = step_operands(torch.float64, tied=False, heads=1)
    pool, rows = normal(5, HEADDIM, STATE, seed=8).detach(), torch.tensor([3, -1])
    before = pool.clone()
    x, dt, A, B, C, D, z, bias = operands
    flat = [x[:, 0], dt[:, 0], A[0], B[:, 0], C[:, 0], D[0], z[:, 0], bias[0]]
    with torch.no_grad():
        y = selective_state_update(pool, *flat, True, rows.int())
    known, h = step_twin(before[rows, None], *operands)
    assert agree(y[0], known[0, 0], torch.float64) and not y[1].any()
    before[3] = h[0, 0]
    assert torch.allclose(pool, before, rtol=1e-14, atol=1e-14)


def test_a_state_of_16_bits():
    operands = step_operands(torch.bfloat16, tied=False, heads=HEADS)
    state = normal(BATCH, HEADS, HEADDIM, STATE, dtype=torch.bfloat16, seed=8).detach()
    known, h = step_twin(exact(state), *map(exact, operands))
    with torch.no_grad():
        y = selective_state_update(state, *operands, dt_softplus=True)
    assert agree(y, known, torch.bfloat16) and agree(state, h, torch.bfloat16)


def step_error(place, x):
    operands = [normal(BATCH, HEADS, HEADDIM, STATE, dtype=torch.float32).detach()]
    operands += step_operands(torch.float32, tied=False, heads=HEADS)
    operands[place] = x
    return lambda: selective_state_update(*operands)


ERRORS = {
    "state has shape (2, 3)": step_error(0, torch.zeros(2, 3)),
    "x has shape (2, 4, 6)": step_error(1, torch.zeros(2, 4, 6)),
    "C has shape (2, 3, 3)": step_error(5, torch.zeros(2, 3, 3)),
}

test_errors = errors(ERRORS)
