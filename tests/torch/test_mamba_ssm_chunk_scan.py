"""Mamba-2's scan and block, of the stand-in for mamba_ssm, against loops over their equations."""

import itertools
from functools import partial

import pytest
import torch
from mamba_cases import DTYPES, advanced, agree, check, convolved, errors, exact, normal, wide
from torch.nn.functional import linear, silu, softplus

import linattn
from linattn.torch.causal_conv1d import causal_conv1d_fn
from linattn.torch.mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
)

BATCH, N, STATE, HEADS, GROUPS, HEADDIM = 2, 7, 3, 4, 2, 5

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
    """Results of bfloat16 tokens alone change, by at most five roundings of each term to 8 bits."""
    options = {"z": None, "dt_softplus": True, "return_final_states": True}

    def run(x, dt, A, B, C, D, z, bias, start):
        given = {"D": D, "dt_bias": bias, "initial_states": start}
        return mamba_chunk_scan_combined(x, dt, A, B, C, 256, **given, **options)

    def gradients(operands):
        y, state = run(*operands)
        given = [x for x in operands if x is not None]
        return [y.detach(), state.detach(), *torch.autograd.grad([y.sum() + state.sum()], given)]

    operands = ssd_operands(torch.bfloat16, skip=skip, gate=False, initial=True)
    signed = (1, 2, 7)  # dt, A and the bias of dt
    terms = [x if x is None or i in signed else x.abs() for i, x in enumerate(operands)]
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


@pytest.mark.parametrize("kind", [None, torch.float32, torch.bfloat16])
def test_the_dtype_of_states(kind):
    """Of those of packed sequences, as in mamba_ssm; final states are float32."""
    x, dt, A, B, C = (y[:1] if y.ndim > 2 else y for y in ssd_operands(torch.float16)[:5])
    y, end, states = mamba_chunk_scan_combined(
        x, dt, A, B, C, 64, cu_seqlens=torch.tensor([0, N]), return_final_states=True,
        return_varlen_states=True, state_dtype=kind,
    )  # fmt: skip
    assert y.dtype is torch.float16 and end.dtype is torch.float32
    assert torch.equal(states, end.to(kind or torch.float16))


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
