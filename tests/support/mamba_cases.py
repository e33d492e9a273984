"""Operands for the stand-ins of mamba_ssm and causal_conv1d, and how results are compared."""

import pytest
import torch

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
