"""linattn's functions for the scans of Transformers: results, gradients and states."""

import contextlib
import functools
import itertools
import types

import pytest
import torch
from transformers_cases import (
    PART,
    agree,
    close,
    errs_no_more,
    functions,
    normal,
    same,
)
from transformers_models import module

from linattn.torch import patch_transformers


def scan_operands(n, *, dtype=torch.float32):
    """x, dt, A, B, C, D, z and dt_bias of Mamba, as its layers give them."""
    m, r = 6, 4
    xz = normal(2, n, 2 * m, dtype=dtype).mT
    return [
        xz[:, :m], normal(2, m, n, seed=2, dtype=dtype), -normal(m, r, seed=3).exp(),
        normal(2, n, r, seed=4, dtype=dtype).mT, normal(2, n, r, seed=5, dtype=dtype).mT,
        normal(m, seed=6), xz[:, m:], normal(m, seed=7),
    ]  # fmt: skip


#: The families with Mamba's scan, and what of D, z, dt_bias and the softplus they are given.
MAMBA_1 = pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "jamba", "zamba"])
GIVEN = list(itertools.product((True, False), repeat=4))


@MAMBA_1
@pytest.mark.parametrize("n", [1, 2, 37])
def test_mamba_selective_scan(n, family):
    for some_d, some_z, bias, softplus in GIVEN if family == "mamba" else GIVEN[:1]:
        x, dt, A, B, C, D, z, dt_bias = scan_operands(n)
        same(
            functions(family), "mamba_selective_scan", x, dt if softplus else dt.exp(), A, B, C,
            D if some_d else None, z if some_z else None, dt_bias if bias else None, softplus,
            return_last_state=some_d, use_associative_scan=True,
        )  # fmt: skip


def test_mamba_selective_scan_copies_no_operand():
    """Its output has the strides of (batch, tokens, channels), which the layers need next."""
    x, dt, A, B, C, D, z, dt_bias = scan_operands(9)
    x = x.mT.contiguous().mT
    o = functions("mamba")[1].mamba_selective_scan(x, dt, A, B, C, D, z, dt_bias, True)
    assert o.mT.is_contiguous()


def test_mamba_scan_of_bfloat16_errs_no_more():
    library, ours = functions("mamba")
    operands = scan_operands(60, dtype=torch.bfloat16)
    owners = library, library, ours
    errs_no_more(owners, "mamba_selective_scan", operands, True, return_last_state=True)


@MAMBA_1
@pytest.mark.parametrize("grad", [True, False])
def test_mamba_selective_state_update(grad, family):
    """It writes to the state, however that lies in memory, and whatever its dtype."""
    for some_d, some_z, bias, softplus in GIVEN if family == "mamba" else GIVEN[:1]:
        for dtype in (torch.float32, torch.bfloat16):
            x, dt, A, B, C, D, z, dt_bias = (
                y[..., 0] if y.ndim == 3 else y for y in scan_operands(1)
            )
            found = []
            for owner in functions(family):
                given = x.clone().requires_grad_(grad)
                state = normal(2, 2, 6, 4, dtype=dtype)[:, 1]
                y = owner.mamba_selective_state_update(
                    state, given, dt if softplus else dt.exp(), A, B, C, D if some_d else None,
                    dt_bias if bias else None, softplus, z if some_z else None,
                )  # fmt: skip
                slopes = torch.autograd.grad(y.sum(), given) if grad else ()
                found.append((y.detach(), state.float().detach(), *slopes))
            agree(found, part=PART if dtype is torch.float32 else 2**-7)


@pytest.mark.parametrize("n, state", [(1, True), (2, True), (2, False), (40, True), (40, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rglru_scan(dtype, n, state):
    """Positions of 0 begin a sequence, in each row its own."""
    start, reset = normal(2, 6, seed=4) if state else None, normal(2, n, 1, seed=3) > 1
    calls = [
        functools.partial(getattr(owner, "RecurrentGemmaRglru._rnn_scan"), None)
        for owner in functions("recurrent_gemma")
    ]
    pair = [types.SimpleNamespace(scan=call) for call in calls]
    same(
        pair, "scan", normal(2, n, 6, dtype=dtype), normal(2, n, 6, seed=2, dtype=dtype).sigmoid(),
        reset, start, part=PART if dtype is torch.float32 else 2**-6,
    )  # fmt: skip


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rwkv_linear_attention(dtype, n, state):
    k, v = normal(2, n, 6, dtype=dtype), normal(2, n, 6, seed=1, dtype=dtype)
    w, u = normal(6, seed=2), normal(6, seed=3)
    start = (normal(2, 6, seed=4), normal(2, 6, seed=5).exp(), normal(2, 6, seed=6))
    found = []
    for owner in functions("rwkv"):
        given = [x.clone().requires_grad_() for x in (w, u, k, v)]
        o, after = owner.rwkv_linear_attention_cpu(*given, start if state else None, True)
        loss = (o.float() * normal(2, n, 6, seed=7)).sum() + (after[0] / after[1]).square().sum()
        found.append((o.detach(), *(x.detach() for x in after), *torch.autograd.grad(loss, given)))
    agree(found, part=PART if dtype is torch.float32 else 2**-6)


@pytest.mark.parametrize("mode", ["train", "train_with_padding", "inference"])
def test_xlstm_backend(mode):
    """All modes of a backend that was built before: results, states and gradients."""
    from transformers import xLSTMConfig

    config = xLSTMConfig(num_heads=2, chunk_size=8, mode=mode, return_last_states=mode == "train")
    backend, found = module("xlstm").xLSTMBackend(config), []
    n = 16 if mode == "train" else 21
    operands = [normal(2, 2, n, d, seed=d) for d in (4, 5, 6)]
    operands[1] = operands[1][..., :4]
    gates = [4 * normal(2, 2, n, seed=8), 4 * normal(2, 2, n, seed=9)]
    start = normal(2, 2, 4, 6), normal(2, 2, 4, seed=1), normal(2, 2, 1, seed=2)
    for patch in (contextlib.nullcontext, patch_transformers):
        given = [x.clone().requires_grad_() for x in (*operands, *gates)]
        with patch():
            result = backend(*given, *start)
        o, state = result if isinstance(result, tuple) else (result, ())
        loss = (o * normal(*o.shape)).sum() + sum(x.square().sum() for x in state)
        found.append((o.detach(), *(x.detach() for x in state), *torch.autograd.grad(loss, given)))
    assert len(found[0]) == (6 if mode == "train_with_padding" else 9)
    agree(found)


def test_rglru_scan_with_autocast():
    """Decays keep their 32 bits, and the output has the dtype of the tokens."""
    library, ours = (
        getattr(x, "RecurrentGemmaRglru._rnn_scan") for x in functions("recurrent_gemma")
    )
    x, a = normal(1, 99, 6), 1 - normal(1, 99, 6, seed=2).sigmoid() / 256
    reset = torch.zeros(1, 99, 1, dtype=torch.bool)
    for tokens, part in ((x, PART), (x.bfloat16(), 2**-8)):
        with torch.autocast("cpu", torch.bfloat16):
            (o, state), (before, last) = (f(None, tokens, a, reset, None) for f in (ours, library))
        assert o.dtype is tokens.dtype
        close(o, before, part=part)
        close(state, last)
