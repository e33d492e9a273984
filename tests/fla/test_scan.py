"""HGRN and RWKV-4 in linattn.torch.fla."""

import fla_package
import pytest
import torch
from fla_cases import CUTS, B, T, rand
from fla_families import FAMILIES, D
from fla_twins import near

from linattn.torch import fla


def make():
    return FAMILIES["hgrn"].make(B).values()


def test_errors():
    x, g = make()
    for args, more, error in (
        ((x[0], g), {}, r"x has shape \(11, 7\); expected \[B, T, D\]"),
        ((x, g[..., :2]), {}, "g has shape"),
        ((x, g), {"cu_seqlens": torch.tensor(CUTS)}, "x has a batch of 2; expected 1"),
        ((x, g, x[:, 0, :2]), {}, "initial_state has shape"),
    ):
        with pytest.raises(ValueError, match=f"fused_recurrent_hgrn: {error}"):
            fla.fused_recurrent_hgrn(*args, **more)
    with pytest.raises(TypeError, match="chunk_hgrn: g is None; expected a tensor"):
        fla.chunk_hgrn(x, None)


def test_rwkv4():
    """Against sums without the common factor, in two parts."""
    (k, v), w, u = make(), rand(D, seed=3), rand(D, seed=4)
    x = k, v, w, u = [y.requires_grad_() for y in (k, v, w, u)]
    num = den = torch.zeros(B, D)
    out = []
    for i in range(T):
        own = (u + k[:, i]).exp()
        out.append((num + own * v[:, i]) / (den + own))
        decay = (-w.exp()).exp()
        num, den = decay * num + k[:, i].exp() * v[:, i], decay * den + k[:, i].exp()
    want = torch.stack(out, 1)
    start = torch.zeros(B, 3, 1, D, dtype=torch.float64)
    start[:, 2] = -torch.inf
    first, half = fla.fused_recurrent_rwkv4(w, u, k[:, :4], v[:, :4], start)
    second, end = fla.fused_recurrent_rwkv4(w, u, k[:, 4:], v[:, 4:], half)
    o = torch.cat([first, second], 1)
    near(o, want, 1e-13)
    s, z, scale = end[:, :, 0].unbind(1)
    near(s * scale.exp(), num, 1e-13)
    near(z * scale.exp(), den, 1e-13)
    expected = torch.autograd.grad(want.square().sum(), x)
    for y, z in zip(torch.autograd.grad(o.square().sum(), x), expected, strict=True):
        near(y, z, 1e-12)
    with pytest.raises(ValueError, match=r"fused_recurrent_rwkv4: state has shape"):
        fla.fused_recurrent_rwkv4(w, u, k, v, start[:1])


@fla_package.NEEDED
def test_against_fla():
    x, g = (y.float() for y in make())
    start = rand(B, D, seed=2).float()
    want, state = fla_package.naive("hgrn").naive_recurrent_hgrn(x, g, start, True)
    o, s = fla.chunk_hgrn(x, g, start, True)
    near(o, want, 1e-6)
    near(s, state, 1e-6)
