"""The scans of the stand-in for mamba_ssm against loops over their equations."""

import itertools
from functools import partial

import pytest
import torch
from mamba_cases import DTYPES, advanced, agree, check, convolved, errors, exact, normal, wide
from torch.nn.functional import linear, rms_norm, silu, softplus

import linattn
from linattn.torch.causal_conv1d import causal_conv1d_fn
from linattn.torch.mamba_ssm.ops.selective_scan_interface import (
    mamba_inner_fn,
    mamba_inner_ref,
    selective_scan_fn,
    selective_scan_ref,
)
from linattn.torch.mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
)

BATCH, DIM, N, STATE, HEADS, GROUPS, HEADDIM = 2, 6, 7, 3, 4, 2, 5


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


SEQ_IDX = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0] * 7], dtype=torch.int32)
BOUNDS = torch.tensor([0, 2, 5, 7])
LIMIT = (0.3, 1.2)


def ssd_twin(x, dt, A, B, C, D, z, bias, initial, *, limit=(0.0, torch.inf), seq_idx=None):
    """The scan and the last state of each row, token by token."""
    dt = softplus(dt + bias).clamp(*limit)
    h = x.new_zeros(*x.shape[::2], HEADDIM, STATE) if initial is None else initial
    group = torch.arange(HEADS) // (HEADS // GROUPS)
    out = []
    for i in range(x.shape[1]):
        if seq_idx is not None and i:
            h = h * (seq_idx[:, i] == seq_idx[:, i - 1])[:, None, None, None]
        keys = (v[:, i, group, None] for v in (B, C))
        h, y = advanced(h, x[:, i], dt[:, i, :, None], A[:, None, None], *keys)
        out.append(y)
    y = torch.stack(out, 1)
    y = y if D is None else y + (D if D.ndim == 2 else D[:, None]) * x
    return (y if z is None else y * silu(z)), h


def ssd_operands(dtype, *, skip="heads", gate=True, initial=True):
    real = wide(dtype)
    shape = (BATCH, N, HEADS, HEADDIM)
    skips = {"heads": (HEADS,), "channels": (HEADS, HEADDIM)}
    return [
        normal(*shape, dtype=dtype), normal(*shape[:3], dtype=dtype, seed=1),
        (-normal(HEADS, seed=2).exp()).detach().to(real).requires_grad_(),
        normal(BATCH, N, GROUPS, STATE, dtype=dtype, seed=3),
        normal(BATCH, N, GROUPS, STATE, dtype=dtype, seed=4),
        normal(*skips[skip], dtype=real, seed=5) if skip else None,
        normal(*shape, dtype=dtype, seed=6) if gate else None, normal(HEADS, dtype=real, seed=7),
        normal(BATCH, HEADS, HEADDIM, STATE, dtype=real, seed=8) if initial else None,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("skip", [None, "heads", "channels"])
@pytest.mark.parametrize("seq_idx", [None, SEQ_IDX], ids=["rows", "packed"])
@pytest.mark.parametrize("initial", [False, True])
def test_chunk_scan(dtype, skip, seq_idx, initial):
    def run(x, dt, A, B, C, D, z, bias, start):
        return mamba_chunk_scan_combined(
            x, dt, A, B, C, 256, D, z, bias, start, seq_idx, None, True, LIMIT, True
        )

    twin = partial(ssd_twin, limit=LIMIT, seq_idx=seq_idx)
    operands = ssd_operands(dtype, skip=skip, gate=skip is not None, initial=initial)
    check(run, twin, operands, dtype)
    y, state = run(*operands)
    assert y.dtype is dtype and y.is_contiguous() and state.dtype is wide(dtype)


@pytest.mark.parametrize("skip", [None, "heads"])
def test_chunk_scan_with_products_of_bfloat16(skip):
    """Five roundings of each term to 8 bits, of bfloat16 tokens alone; and of their gradients."""
    options = {"z": None, "dt_softplus": True, "return_final_states": True}

    def run(x, dt, A, B, C, D, z, bias, start):
        given = {"D": D, "dt_bias": bias, "initial_states": start}
        return mamba_chunk_scan_combined(x, dt, A, B, C, 256, **given, **options)

    def gradients(operands):
        y, state = run(*operands)
        given = [x for x in operands if x is not None]
        return [y.detach(), state.detach(), *torch.autograd.grad([y.sum() + state.sum()], given)]

    operands = ssd_operands(torch.bfloat16, skip=skip, gate=False, initial=True)
    terms = [x if x is None or i in (1, 2, 7) else x.abs() for i, x in enumerate(operands)]
    most = ssd_twin(*map(exact, terms))
    plain, mixed = gradients(operands), [operands[0].float(), *operands[1:]]
    unchanged = run(*mixed)
    with linattn.products("bfloat16"):
        found = gradients(operands)
        assert all(map(torch.equal, run(*mixed), unchanged))
    assert not torch.equal(found[0], plain[0])
    for x, y, bound in zip(found, plain, most, strict=False):
        assert x.dtype is y.dtype and ((x - y).abs() <= 5 * 2.0**-8 * bound).all()
    for x, y in zip(found, plain, strict=True):
        assert x.dtype is y.dtype and (x - y).abs().max() <= 2.0**-5 * y.abs().max()


#: Numbers of the sequences of tokens, and the bounds of those that are asked for.
PACKED = [
    *itertools.product(
        ([0, 0, 1, -1, -1, -1, -1], [0, 0, 1, 2, 2, -1, -1]),
        ([0, 2, 3], [0, 2, 2, 3], [0, 2, 3, 3]),
    ),
    (SEQ_IDX[0].tolist(), [0, 2, 2, 5, 7]),
    (None, [0, 7]),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "bounds"), PACKED)
def test_states_of_packed_sequences(numbers, bounds):
    x, dt, A, B, C, *_ = (y[:1] if y.ndim > 2 else y for y in ssd_operands(torch.float64)[:5])

    def run(at, **given):
        own = (v if v is A else v[:, at] for v in (x, dt, A, B, C))
        return mamba_chunk_scan_combined(*own, 64, **given, return_final_states=True)

    every, options = slice(None), {}
    if numbers:
        options["seq_idx"] = torch.tensor([numbers], dtype=torch.int32)
    y, end, states = run(every, **options, cu_seqlens=torch.tensor(bounds),
                         return_varlen_states=True)  # fmt: skip
    assert all(map(torch.equal, (y, end), run(every, **options)))
    assert bounds[-1] < N or torch.equal(end, states[-1:])
    for state, (begin, stop) in zip(states, itertools.pairwise(bounds), strict=True):
        own, last = run(slice(begin, stop))
        assert torch.equal(state, last[0]) and (begin < stop or not state.any())
        assert begin == stop or agree(y[:, begin:stop], own, torch.float64)


def split_twin(zxbcdt, taps, bias, dt_bias, A, D, weight, out_weight, out_bias, *, mlp, before,
               seq_idx):  # fmt: skip
    dim, keys = HEADS * HEADDIM, GROUPS * STATE
    gate, up, z, xBC, dt = zxbcdt.split([mlp, mlp, dim, dim + 2 * keys, HEADS], -1)
    xBC = convolved(xBC.mT, taps, bias, seq_idx=seq_idx, silu_=True).mT
    x, B, C = xBC.split([dim, keys, keys], -1)
    x, B, C = (v.unflatten(-1, (k, -1)) for v, k in ((x, HEADS), (B, GROUPS), (C, GROUPS)))
    heads = None if weight is not None else z.unflatten(-1, (HEADS, -1))
    y, h = ssd_twin(x, dt, A, B, C, D, heads, dt_bias, None, limit=LIMIT, seq_idx=seq_idx)
    y = y.flatten(2)
    if weight is not None:
        y = y if before else y * silu(z)
        groups = y.unflatten(-1, (GROUPS, -1))
        groups = groups / (groups.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        y = groups.flatten(-2) * weight
        y = y * silu(z) if before else y
    y = torch.cat([silu(gate) * up, y], -1)
    return linear(y, out_weight, out_bias), h


@pytest.mark.parametrize("mlp", [0, 3])
@pytest.mark.parametrize("norm", [None, "before", "after"])
@pytest.mark.parametrize("seq_idx", [torch.zeros_like(SEQ_IDX), SEQ_IDX], ids=["rows", "packed"])
def test_split_scan(mlp, norm, seq_idx):
    dim, keys = HEADS * HEADDIM, GROUPS * STATE
    shapes = [
        (BATCH, N, 2 * mlp + 2 * dim + 2 * keys + HEADS), (dim + 2 * keys, 4), (dim + 2 * keys,),
        (HEADS,), (HEADS,), (HEADS, HEADDIM), (dim,), (9, mlp + dim), (9,),
    ]  # fmt: skip
    operands = [normal(*x, seed=i) for i, x in enumerate(shapes)]
    operands[4] = (-operands[4].exp()).detach().requires_grad_()
    if norm is None:
        operands[6] = None

    def run(zxbcdt, taps, bias, dt_bias, A, D, weight, out_weight, out_bias):
        return mamba_split_conv1d_scan_combined(
            zxbcdt, taps, bias, dt_bias, A, D, 256, seq_idx=seq_idx, dt_limit=LIMIT,
            return_final_states=True, rmsnorm_weight=weight, rmsnorm_eps=1e-5,
            outproj_weight=out_weight, outproj_bias=out_bias, ngroups=GROUPS,
            norm_before_gate=norm == "before",
        )  # fmt: skip

    twin = partial(split_twin, mlp=mlp, before=norm == "before", seq_idx=seq_idx)
    check(run, twin, operands, torch.float64)


def row(rows, function, **given):
    """A convolution or a scan of 1 or 2 rows of the same tokens."""
    x, dt, A, B, C, D, *_ = (
        y if i in (2, 5) else y[:rows] for i, y in enumerate(ssd_operands(torch.float64)[:6])
    )
    if function == "scan":
        return mamba_chunk_scan_combined(x, dt, A, B, C, 16, D, **given)
    keys = GROUPS * STATE
    if function == "conv":
        taps = normal(2 * keys, 3, seed=9)
        return causal_conv1d_fn(torch.cat([B, C], -1).flatten(2).mT, taps, **given)
    wide = torch.cat([x.flatten(2), x.flatten(2), B.flatten(2), C.flatten(2), dt], -1)
    taps = normal(HEADS * HEADDIM + 2 * keys, 3, seed=9)
    more = {"headdim": HEADDIM, "ngroups": GROUPS}
    return mamba_split_conv1d_scan_combined(wide, taps, None, D, A, D, 16, **more, **given)


@pytest.mark.parametrize("function", ["conv", "scan", "block"])
def test_bounds_by_the_name_that_transformers_models_hand_on(function):
    """They separate sequences as their numbers do, which come first."""
    run, bounds, ends = partial(row, 1, function), BOUNDS, BOUNDS[[0, 3]]
    apart, whole = run(seq_idx=SEQ_IDX[:1]), run()
    assert not torch.equal(apart, whole)
    assert torch.equal(run(cu_seq_lens_q=bounds), apart)
    assert torch.equal(run(cu_seq_lens_q=ends), whole)
    assert torch.equal(run(cu_seq_lens_q=ends, seq_idx=SEQ_IDX[:1]), apart)
    with pytest.raises(ValueError, match="cu_seq_lens_q is given for 2 rows; expected one row"):
        row(2, function, cu_seq_lens_q=bounds)


def scan_error(place, x):
    operands = scan_operands(torch.float32)
    operands[place] = x
    return lambda: selective_scan_fn(*operands)


def ssd_error(place=None, x=None, **options):
    operands = ssd_operands(torch.float32)
    if place is not None:
        operands[place] = x
    x, dt, A, B, C, D, z, bias, start = operands
    options = {"initial_states": start, "seq_idx": None} | options
    return lambda: mamba_chunk_scan_combined(x, dt, A, B, C, 1, D, z, bias, **options)


def ssd_error_of_packed(cu_seqlens, seq_idx):
    x, dt, A, B, C, *_ = (y[:1] if y.ndim > 2 else y for y in ssd_operands(torch.float32)[:5])
    options = {"cu_seqlens": cu_seqlens, "seq_idx": seq_idx, "return_varlen_states": True}
    return lambda: mamba_chunk_scan_combined(x, dt, A, B, C, 1, **options)


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
    "x has shape (2, 7, 20)": ssd_error(0, Z(2, 7, 20)),
    "dt has shape (2, 7)": ssd_error(1, Z(2, 7)),
    "B has shape (2, 7, 3, 3)": ssd_error(3, Z(2, 7, 3, 3)),
    "D has shape (4, 4)": ssd_error(5, Z(4, 4)),
    "initial_states has shape (2, 4, 3, 5)": ssd_error(8, Z(2, 4, 3, 5)),
    "seq_idx begins with [1, 0]": ssd_error(
        seq_idx=torch.tensor([[1] * 7, [0] * 7], dtype=torch.int32)
    ),
    "cu_seqlens is [0, 3, 7] and seq_idx is None": ssd_error(cu_seqlens=torch.tensor([0, 3, 7])),
    "cu_seqlens is [0, 3]; expected the bounds of the sequences in seq_idx, [0, 2, 5, 7]": (
        ssd_error_of_packed(torch.tensor([0, 3]), SEQ_IDX[:1])
    ),
    "cu_seqlens is [0, 3]; expected the bounds of the sequences in seq_idx, [0, 7]": (
        ssd_error_of_packed(torch.tensor([0, 3]), None)
    ),
    "return_varlen_states is True": ssd_error(return_varlen_states=True),
}  # fmt: skip

test_errors = errors(ERRORS)
