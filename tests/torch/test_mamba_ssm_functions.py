"""The scans of the stand-in for mamba_ssm against loops over their equations."""

from functools import partial

import pytest
import torch
from mamba_cases import DTYPES, advanced, agree, check, convolved, errors, normal, wide
from torch.nn.functional import linear, rms_norm, silu, softplus

from linattn.torch.mamba_ssm.ops.selective_scan_interface import (
    mamba_inner_fn,
    mamba_inner_ref,
    selective_scan_fn,
    selective_scan_ref,
)

BATCH, DIM, N, STATE = 2, 6, 7, 3


def scan_twin(u, delta, A, B, C, D=None, z=None, bias=None, *, softplus_=True):
    """The scan and its last state, token by token; B and C (batch, dim, dstate, n)."""
    dt = delta if bias is None else delta + bias[:, None]
    dt = softplus(dt) if softplus_ else dt
    h, out = torch.zeros(len(u), *A.shape, dtype=A.dtype), []
    B, C = (full(x, u, A) for x in (B, C))
    for i in range(u.shape[-1]):
        h, y = advanced(h, u[..., i], dt[..., i], A, B[..., i], C[..., i])
        out.append(2 * y.real if A.is_complex() else y)
    y = torch.stack(out, -1)
    y = y if D is None else y + D[:, None] * u
    return (y if z is None else y * silu(z)), h


def full(x, u, A):
    """B or C of any of mamba_ssm's shapes as (batch, dim, dstate, n)."""
    if x.ndim == 2:
        return x[None, ..., None].expand(len(u), -1, -1, u.shape[-1])
    if A.is_complex():
        x = torch.complex(x[..., 0::2], x[..., 1::2])
    x = x[:, None] if x.ndim == 3 else x
    return torch.stack([x[:, c * x.shape[1] // DIM] for c in range(DIM)], 1)


#: Shapes of B and C: the same at all tokens, one a token, and groups.
SHAPES = {
    "constant": lambda n: (DIM, STATE), "variable": lambda n: (BATCH, STATE, n),
    "two groups": lambda n: (BATCH, 2, STATE, n), "three groups": lambda n: (BATCH, 3, STATE, n),
}  # fmt: skip


def scan_operands(dtype, b="variable", c="variable", *, is_complex=False):
    real = wide(dtype)

    def varying(kind, seed):
        shape = SHAPES[kind](2 * N if is_complex else N)
        if kind != "constant":
            return normal(*shape, dtype=dtype, seed=seed)
        x = normal(*shape, dtype=real, seed=seed)
        return turned(x, seed + 10) if is_complex else x

    A = (-normal(DIM, STATE, seed=1).exp()).detach().to(real).requires_grad_()
    return [
        normal(BATCH, DIM, N, dtype=dtype), normal(BATCH, DIM, N, dtype=dtype, seed=2),
        turned(A, 3) if is_complex else A, varying(b, 4), varying(c, 5),
        normal(DIM, dtype=real, seed=6), normal(BATCH, DIM, N, dtype=dtype, seed=7),
        normal(DIM, dtype=real, seed=8),
    ]  # fmt: skip


def turned(x, seed):
    """A complex tensor with this real part."""
    return (
        torch.complex(x, 3 * normal(*x.shape, dtype=x.dtype, seed=seed)).detach().requires_grad_()
    )


def run_scan(*operands, function=selective_scan_fn):
    return function(*operands, delta_softplus=True, return_last_state=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize(
    ("b", "c"),
    [("variable", "variable"), ("constant", "variable"), ("two groups", "constant"),
     ("constant", "constant"), ("two groups", "two groups"), ("three groups", "two groups")],
)  # fmt: skip
def test_scan(dtype, is_complex, b, c):
    operands = scan_operands(dtype, b, c, is_complex=is_complex)
    check(run_scan, scan_twin, operands, dtype)
    y, state = run_scan(*operands)
    expected = wide(dtype).to_complex() if is_complex else wide(dtype)
    assert y.dtype is dtype and y.is_contiguous() and state.dtype is expected
    check(partial(run_scan, function=selective_scan_ref), scan_twin, operands, dtype)


def test_scan_without_what_is_optional():
    u, delta, A, B, C, *_ = scan_operands(torch.float64)
    delta = delta.detach().abs()
    twin = partial(scan_twin, softplus_=False)
    check(selective_scan_fn, lambda *x: twin(*x)[0], [u, delta, A, B, C], torch.float64)


def inner_twin(
    xz, taps, bias, to_x, to_dt, to_out, out_bias, A, D=None, dt_bias=None, *norms,
    given=(None, None),
):  # fmt: skip
    """``norms`` are what is added to B and C, and the weights of the norms of B, C and delta."""
    x, z = xz.chunk(2, 1)
    x = convolved(x, taps[:, 0], bias, silu_=True)
    rank, width = to_dt.shape[1], (len(to_x) - to_dt.shape[1]) // 2
    r, *own = linear(x.mT, to_x).split([rank, width, width], -1)
    delta = linear(r, to_dt)
    if norms:
        pairs = zip(own, norms[:2], norms[2:4], strict=True)
        own = [rms_norm(v + b, v.shape[-1:], w, 1e-6) for v, b, w in pairs]
        delta = rms_norm(delta, (DIM,), norms[4], 1e-6)
    if A.is_complex():
        own = [v.unflatten(-1, (-1, 2)).transpose(1, 2).flatten(2) for v in own]
    else:
        own = [v.mT for v in own]
    B, C = (y if y is not None else o for y, o in zip(given, own, strict=True))
    y, _ = scan_twin(x, delta.mT, A, B, C, D, z, dt_bias)
    return linear(y.mT, to_out, out_bias)


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inner(dtype, is_complex):
    rank, width = 2, STATE * (2 if is_complex else 1)
    shapes = [
        (BATCH, 2 * DIM, N), (DIM, 1, 4), (DIM,), (rank + 2 * width, DIM), (DIM, rank), (8, DIM),
        (8,), None, (DIM,), (DIM,), (width,), (width,), (width,), (width,), (DIM,),
    ]  # fmt: skip
    operands = [x and normal(*x, dtype=dtype, seed=i) for i, x in enumerate(shapes)]
    operands[7] = scan_operands(dtype, is_complex=is_complex)[2]

    def run(*x):
        return mamba_inner_fn(*x[:8], None, None, *x[8:12], True, 1, *x[12:])

    check(run, inner_twin, operands, dtype)


def test_the_reference_of_the_inner_function():
    """All arguments have the places of those of mamba_inner_fn."""
    shapes = [
        (BATCH, 2 * DIM, N), (DIM, 1, 4), (DIM,), (2 + STATE, DIM), (DIM, 2), (5, DIM), (5,),
        (DIM, STATE), (BATCH, STATE, N), None, (DIM,), (DIM,), None, (STATE,),
    ]  # fmt: skip
    operands = [x and normal(*x, seed=i).detach() for i, x in enumerate(shapes)]
    operands[7] = -operands[7].exp()
    for soft in (True, False):
        operands[11] = operands[11].abs() * 100
        found = mamba_inner_ref(*operands, soft)
        assert torch.equal(found, mamba_inner_fn(*operands, soft))


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize(("b", "c"), [(True, False), (False, True), (True, True)])
def test_inner_with_b_or_c_given(b, c, is_complex):
    """Its rows of the projection may be left out, or be there and not used."""
    rank, width = 2, STATE * (2 if is_complex else 1)
    shapes = [(BATCH, 2 * DIM, N), (DIM, 1, 4), (DIM,), (rank + 2 * width, DIM), (DIM, rank)]
    xz, taps, bias, to_x, to_dt = (normal(*x, seed=i) for i, x in enumerate(shapes))
    _, _, A, B, C, *_ = scan_operands(torch.float64, is_complex=is_complex)
    given, eye = [B if b else None, C if c else None], torch.eye(DIM).double()
    known = inner_twin(xz, taps, bias, to_x, to_dt, eye, None, A, given=given)
    kept = [True] * rank + [not b] * width + [not c] * width
    for weight in (to_x, to_x[torch.tensor(kept)]):
        found = mamba_inner_fn(xz, taps, bias, weight, to_dt, eye, None, A, *given)
        assert agree(found, known, torch.float64)


def scan_error(place, x):
    operands = scan_operands(torch.float32)
    operands[place] = x
    return lambda: selective_scan_fn(*operands)


Z = torch.zeros
ERRORS = {
    "u has shape (2, 6)": scan_error(0, Z(2, 6)),
    "delta has shape (2, 6, 8)": scan_error(1, Z(2, 6, 8)),
    "A has shape (5, 3)": scan_error(2, Z(5, 3)),
    "B has shape (2, 4, 3, 7)": scan_error(3, Z(2, 4, 3, 7)),
    "C has shape (2, 3, 14)": scan_error(4, Z(2, 3, 14)),
    "C has dtype torch.complex64": scan_error(4, Z(6, 3, dtype=torch.complex64)),
    "z is a float": scan_error(6, 1.0),
    "x_proj_weight has shape (4, 6); expected at least 5 rows, as B is None and C is given": (
        lambda: mamba_inner_fn(Z(2, 12, 7), Z(6, 1, 4), None, Z(4, 6), Z(6, 2), Z(6, 6), None,
                               -Z(6, 3), C=Z(2, 3, 7))
    ),
    "D has shape (1,)": scan_error(5, Z(1)),
}  # fmt: skip

test_errors = errors(ERRORS)
