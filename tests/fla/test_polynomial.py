"""Based and ReBased in linattn.torch.fla."""

import fla_package
import pytest
import torch
from fla_cases import B, H, K, T, V, rand
from fla_twins import near

from linattn.torch import fla

BASED = fla.parallel_based, fla.fused_chunk_based


def make():
    return rand(B, T, H, K), rand(B, T, H, K, seed=1), rand(B, T, H, V, seed=2)


def twin(q, k, v, weigh, scale=K**-0.5, eps=None):
    """Outputs and sums of weights, [B, T, H, ...]."""
    scores = scale * torch.einsum("bihk,bjhk->bhij", q, k)
    weights = weigh(scores).tril()
    total = weights.sum(-1).transpose(1, 2)
    o = torch.einsum("bhij,bjhv->bihv", weights, v)
    return o if eps is None else o / (total[..., None] + eps), total


def series(s):
    return 1 + s + s**2 / 2


@pytest.mark.parametrize("scale", [None, 0.7, -0.7])
@pytest.mark.parametrize("norm", [True, False])
def test_based(scale, norm):
    x = [y.requires_grad_() for y in make()]
    want, _ = twin(*x, series, K**-0.5 if scale is None else scale, 1e-6 if norm else None)
    expected = torch.autograd.grad(want.square().sum(), x)
    for run in BASED:
        o = run(*x, scale=scale, use_norm=norm)
        assert o.is_contiguous()
        near(o, want, 1e-13)
        for y, z in zip(torch.autograd.grad(o.square().sum(), x), expected, strict=True):
            near(y, z, 1e-12)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_rebased(scaled, norm):
    x = [y.requires_grad_() for y in make()]
    scale = K**-0.5 if scaled else 1.0
    want, _ = twin(*x, torch.square, scale, 0.25 if norm else None)
    o = fla.parallel_rebased(*x, eps=0.25, use_scale=scaled, use_normalize=norm)
    near(o, want, 1e-13)
    expected = torch.autograd.grad(want.square().sum(), x)
    for y, z in zip(torch.autograd.grad(o.square().sum(), x), expected, strict=True):
        near(y, z, 1e-12)
    o, total = fla.parallel_rebased(*x, use_scale=scaled, return_both=True)
    want, sums = twin(*x, torch.square, scale)
    near(o.transpose(1, 2), want, 1e-13)
    near(total.transpose(1, 2), sums, 1e-13)


def test_sixteen_bits():
    x = [y.bfloat16() for y in make()]
    wide = [y.double() for y in x]
    for run, weigh, eps in ((fla.parallel_based, series, 1e-6),
                            (fla.parallel_rebased, torch.square, 1e-5)):  # fmt: skip
        o = run(*x)
        assert o.dtype is torch.bfloat16
        near(o.double(), twin(*wide, weigh, eps=eps)[0], 2**-8)


def test_errors():
    q, k, v = make()
    with pytest.raises(ValueError, match=r"parallel_based: k has shape .*; expected \(2, 11, 3, 4"):
        fla.parallel_based(q, k[:, :5], v)
    with pytest.raises(ValueError, match=r"parallel_rebased: v has shape .*\[B, T, H, V\]"):
        fla.parallel_rebased(q, k, torch.cat([v, v], 2))
    with pytest.raises(TypeError, match="fused_chunk_based: q is None"):
        fla.fused_chunk_based(None, k, v)


@fla_package.needed
def test_against_fla():
    x = [y.float() for y in make()]
    by_head = [y.transpose(1, 2) for y in x]
    want = fla_package.naive("based").naive_parallel_based(*by_head)
    near(fla.parallel_based(*x), want.transpose(1, 2), 1e-5)
    want = fla_package.naive("rebased").naive_parallel_rebased(*by_head)
    near(fla.parallel_rebased(*x, eps=1e-6), want.transpose(1, 2), 1e-5)
