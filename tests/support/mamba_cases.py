"""Operands for the stand-ins of mamba_ssm and causal_conv1d, and how results are compared."""

import pytest
import torch
from torch.nn.functional import silu

#: Units of the last place of the dtype that is computed in, of a result's largest entry: more than
#: there are terms in any sum over the few tokens, channels and states of these tests.
ROUNDINGS = 256
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def wide(dtype):
    """The dtype in which operands of a dtype are computed."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def normal(*shape, dtype=torch.float64, seed=0):
    """Normally distributed, requires grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def normals(dtype, seed=0):
    """A function that draws one tensor of a shape after another, from one source."""
    source = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)


def exact(x):
    """The same numbers in float64 or complex128, requires grad."""
    if x is None or not (x.is_floating_point() or x.is_complex()):
        return x
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return x.detach().to(dtype).requires_grad_()


def agree(found, expected, dtype):
    """Whether a result agrees with the twin's, of operands of a dtype."""
    unit = torch.finfo(wide(dtype)).eps
    rounded = torch.finfo(found.dtype).eps
    expected = expected.to(torch.complex128 if found.is_complex() else torch.float64)
    bound = ROUNDINGS * unit * expected.abs().max() + rounded * expected.abs()
    return found.shape == expected.shape and bool(((found - expected).abs() <= bound).all())


def check(function, twin, operands, dtype, reference=None):
    """Compare results and the gradients of all operands with those of the twin.

    A package's own reference of the function is compared as the twin is, and has its dtypes.
    """
    if reference is not None:
        check(function, reference, operands, dtype)
        pairs = zip(_all(function(*operands)), _all(reference(*operands)), strict=True)
        assert all(x.dtype is y.dtype and x.shape == y.shape for x, y in pairs)
    copies = [exact(x) for x in operands]
    results, expected = _all(function(*operands)), _all(twin(*copies))
    assert len(results) == len(expected)
    for x, y in zip(results, expected, strict=True):
        assert agree(x, y, dtype), (x - y).abs().max()
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in results]
    given = [(x, y) for x, y in zip(operands, copies, strict=True) if _moves(x)]
    found = torch.autograd.grad(results, [x for x, _ in given], cotangents)
    wide_cotangents = [c.to(y.dtype) for c, y in zip(cotangents, expected, strict=True)]
    known = torch.autograd.grad(expected, [y for _, y in given], wide_cotangents)
    for x, y in zip(found, known, strict=True):
        assert agree(x, y, dtype), (x - y).abs().max()


def convolved(x, weight, bias, initial=None, *, seq_idx=None, silu_=False, states=False):
    """The convolution, token by token, of x (batch, dim, n)."""
    width = weight.shape[1]
    before = x.new_zeros(*x.shape[:2], width - 1) if initial is None else initial
    inputs, out = torch.cat([before, x], -1), []
    for t in range(x.shape[-1]):
        taps = inputs[..., t : t + width]
        if seq_idx is not None:
            places = torch.arange(t - width + 1, t + 1)
            number = seq_idx[:, places.clamp(min=0)]
            inside = (number == seq_idx[:, t : t + 1]) & (seq_idx[:, t : t + 1] >= 0)
            inside &= (places >= 0) | (initial is not None)
            taps = taps * inside[:, None]
        o = (taps * weight).sum(-1)
        o = o if bias is None else o + bias
        if seq_idx is not None:
            o = o * (seq_idx[:, t] >= 0)[:, None]
        out.append(silu(o) if silu_ else o)
    o = torch.stack(out, -1)
    return (o, inputs[..., x.shape[-1] :]) if states else o


def advanced(h, x, dt, A, B, C):
    """The state after a token x (..., p), dt of its shape or that of heads, and its output."""
    h = torch.exp(dt[..., None] * A) * h + (dt * x)[..., None] * B
    return h, (h * C).sum(-1)


def errors(table, kinds=(TypeError, ValueError)):
    """A test of calls, or errors and calls, that are refused, by a part of their message."""

    @pytest.mark.parametrize("message", table)
    def test(message):
        row = table[message]
        kind, run = row if isinstance(row, tuple) else (kinds, row)
        with pytest.raises(kind) as error:
            run()
        assert message in str(error.value)

    return test


def _moves(x):
    return x is not None and x.requires_grad


def _all(result):
    return list(result) if isinstance(result, tuple) else [result]
