"""The norms of the stand-in for mamba_ssm against their equations."""

import functools

import pytest
import torch
from mamba_cases import DTYPES, agree, check, errors, exact, normal, wide
from torch.nn.functional import silu

from linattn.torch.mamba_ssm.ops.triton import layer_norm, layernorm_gated

ROWS, DIM, EPS = (2, 3), 6, 1e-5


def norm(x, weight, bias, rms, group=DIM):
    y = x.unflatten(-1, (-1, group))
    y = y if rms else y - y.mean(-1, keepdim=True)
    y = (y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()).flatten(-2) * weight
    return y if bias is None else y + bias


def rows(dtype, seed=0):
    return normal(*ROWS, DIM, dtype=dtype, seed=seed)


def vector(dtype, seed):
    return normal(DIM, dtype=wide(dtype), seed=seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("gate", [None, "before", "after"])
@pytest.mark.parametrize("group", [None, 3])
def test_gated(dtype, rms, gate, group):
    """``gate`` says whether the norm comes before or after it."""

    def twin(x, weight, bias, z):
        x = x * silu(z) if gate == "after" else x
        y = norm(x, weight, bias, rms, group or DIM)
        return y * silu(z) if gate == "before" else y

    def run(x, weight, bias, z):
        function = layernorm_gated.rmsnorm_fn if rms else layernorm_gated.layernorm_fn
        return function(x, weight, bias, z, EPS, group, gate != "after")

    z = None if gate is None else rows(dtype, 3)
    operands = [rows(dtype), vector(dtype, 1), vector(dtype, 2), z]
    more = {"eps": EPS, "group_size": group, "norm_before_gate": gate != "after"}
    reference = functools.partial(layernorm_gated.rms_norm_ref, **more) if rms else None
    check(run, twin, operands, dtype, reference)
    assert run(rows(dtype), vector(dtype, 1), None, z).dtype is dtype
    narrow = [y if y is None else y.detach().to(dtype) for y in operands]
    assert layernorm_gated.rms_norm_ref(*narrow, upcast=False).dtype is dtype


@pytest.mark.parametrize("rms", [False, True])
def test_gated_layers(rms):
    kind = layernorm_gated.RMSNorm if rms else layernorm_gated.LayerNorm
    layer = kind(DIM, eps=EPS, group_size=2, norm_before_gate=False)
    assert [*layer.state_dict()] == (["weight"] if rms else ["weight", "bias"])
    x, z = rows(torch.float32), rows(torch.float32, 1)
    known = norm(exact(x) * silu(exact(z)), 1, None, rms, 2)
    assert agree(layer(x, z), known, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("branch", [True, False])
def test_residual_and_second_branch(dtype, kind, branch):
    def twin(x, weight, bias, residual, x1=0, *others):
        total = x + residual + x1
        norms = (norm(total, *y, kind == "rms_norm") for y in ((weight, bias), others) if y)
        return *norms, total

    function, reference = (getattr(layer_norm, f"{kind}_{x}") for x in ("fn", "ref"))
    run = functools.partial(function, eps=EPS, prenorm=True)
    operands = [
        rows(dtype),
        vector(dtype, 1),
        vector(dtype, 2),
        normal(*ROWS, DIM, dtype=wide(dtype), seed=3),
    ]
    if branch:
        operands += [rows(dtype, 4), vector(dtype, 5), vector(dtype, 6)]
    check(
        run, twin, operands, dtype, functools.partial(reference, upcast=True, eps=EPS, prenorm=True)
    )
    narrow = [y.to(dtype) for y in operands[:3]]
    assert reference(*narrow).dtype is dtype


def test_row_scale_and_the_dtype_of_the_residual():
    x, weight, scale = rows(torch.bfloat16), vector(torch.bfloat16, 1), normal(*ROWS, seed=2)
    options = {"eps": EPS, "prenorm": True, "is_rms_norm": True, "rowscale": scale}
    y, total = layer_norm.layer_norm_fn(x, weight, None, residual_in_fp32=True, **options)
    known = exact(x) * scale[..., None]
    assert y.dtype is torch.bfloat16 and total.dtype is torch.float32
    assert agree(total, known, torch.bfloat16)
    assert agree(y, norm(known, exact(weight), None, True), torch.bfloat16)
    residual = torch.zeros(*ROWS, DIM, dtype=torch.float64)
    assert layer_norm.layer_norm_fn(x, weight, None, residual, **options)[1].dtype is residual.dtype
    assert layer_norm.layer_norm_fn(x, weight, None, **options)[1].dtype is torch.bfloat16


def test_dropout():
    torch.manual_seed(0)
    x, x1 = rows(torch.float64), rows(torch.float64, 1)
    weight = torch.ones(DIM, dtype=torch.float64)
    _, total, kept, kept1 = layer_norm.layer_norm_fn(
        x, weight, None, x1=x1, dropout_p=0.4, prenorm=True, return_dropout_mask=True
    )
    assert agree(total, (x * kept + x1 * kept1) / 0.6, torch.float64)
    assert kept.dtype is torch.bool and not torch.equal(kept, kept1)
    assert layer_norm.layer_norm_fn(x, weight, None, return_dropout_mask=True)[1:] == (None, None)
    layer = layer_norm.RMSNorm(DIM, dropout_p=1 - 1e-9, dtype=torch.float64)
    assert not layer(x).any() and layer.eval()(x).all()


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_references_with_dropout_and_scales_of_rows(kind):
    x, x1, weight = rows(torch.float64), rows(torch.float64, 1), vector(torch.float64, 2)
    function, reference = (getattr(layer_norm, f"{kind}_{x}") for x in ("fn", "ref"))
    y, kept, kept1 = function(
        x, weight, None, x1=x1, dropout_p=0.4, return_dropout_mask=True, eps=EPS
    )
    options = {"dropout_p": 0.4, "dropout_mask": kept, "eps": EPS}
    assert agree(y, reference(x, weight, None, x1=x1, dropout_mask1=kept1, **options), x.dtype)
    more = {"rowscale": normal(*ROWS, seed=3), "eps": EPS}
    known = reference(x, weight, None, **more)
    assert agree(function(x, weight, None, **more), known, x.dtype)
    first, second = (reference(x, weight, None, dropout_p=0.4) for _ in range(2))
    assert not torch.equal(first, second)


def test_norm_and_projection():
    def twin(x, weight, bias, matrix, shift, residual):
        total = x + residual
        return norm(total, weight, bias, False) @ matrix.T + shift, total

    run = functools.partial(layer_norm.layer_norm_linear_fn, eps=EPS, prenorm=True)
    dtype = torch.float64
    matrix, shift = normal(4, DIM, seed=3), normal(4, seed=4)
    operands = [rows(dtype), vector(dtype, 1), vector(dtype, 2), matrix, shift, rows(dtype, 5)]
    check(run, twin, operands, dtype)


X, W = torch.ones(2, 6), torch.ones(6)
ERRORS = {
    "layernorm_fn: weight has shape (5,)": lambda: layernorm_gated.layernorm_fn(X, W[1:], None),
    "rmsnorm_fn: z has shape (6,)": lambda: layernorm_gated.rmsnorm_fn(X, W, None, W),
    "group_size is 4": lambda: layernorm_gated.rmsnorm_fn(X, W, None, group_size=4),
    "rms_norm_fn: residual has shape (1, 6)": lambda: layer_norm.rms_norm_fn(X, W, None, X[:1]),
    "rowscale and x1 are both given": lambda: layer_norm.layer_norm_fn(
        X, W, None, x1=X, rowscale=X[:, 0]
    ),
}

test_errors = errors(ERRORS, ValueError)
