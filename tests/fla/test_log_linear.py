"""Log-linear attention in linattn.torch.fla."""

from itertools import pairwise

import fla_package
import pytest
import torch
from fla_cases import H, K, V, rand
from fla_twins import near

from linattn.torch import fla

B, T, LEVELS = 2, 330, 10
NAMES = ("q", "k", "v", "g", "level_scales")


def make(n=T, batch=B, heads=2 * H):
    return {
        "q": rand(batch, n, H, K), "k": rand(batch, n, H, K, seed=1),
        "v": rand(batch, n, heads, V, seed=2), "g": -0.1 * rand(batch, n, heads, seed=3).abs(),
        "level_scales": rand(batch, n, heads, LEVELS, seed=4),
    }  # fmt: skip


def twin(q, k, v, g, level_scales, scale=1.0):
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    total = g.cumsum(1)
    out = []
    for t in range(q.shape[1]):
        level = torch.tensor([(t ^ j).bit_length() for j in range(t + 1)])
        weight = scale * (q[:, t, None] * k[:, : t + 1]).sum(-1)
        weight = weight * (total[:, t, None] - total[:, : t + 1]).exp()
        weight = weight * level_scales[:, t][..., level].transpose(1, 2)
        out.append((weight.unsqueeze(-1) * v[:, : t + 1]).sum(1))
    return torch.stack(out, 1)


def test_against_the_twin():
    x = {key: y.requires_grad_() for key, y in make().items()}
    o, nothing = fla.chunk_log_linear_attn(**x)
    assert nothing is None and o.is_contiguous()
    want = twin(**x)
    near(o, want, 1e-12)
    expected = torch.autograd.grad(want.square().sum(), [*x.values()])
    for y, z in zip(torch.autograd.grad(o.square().sum(), [*x.values()]), expected, strict=True):
        near(y, z, 1e-11)
    near(fla.chunk_log_linear_attn(**x, scale=None)[0], K**-0.5 * want, 1e-12)
    for n in (1, 2, 64, 65, 128):
        part = {key: y[:, :n] for key, y in x.items()}
        near(fla.chunk_log_linear_attn(**part)[0], want[:, :n], 1e-12)


@pytest.mark.parametrize("cuts", [(0, 70, 71, 128, 129, 330), (0, 64, 256, 330), (0, 1, 2, 330)])
def test_states(cuts):
    x = {key: y.requires_grad_() for key, y in make().items()}
    state, out = None, []
    for begin, end in pairwise(cuts):
        part = {key: y[:, begin:end] for key, y in x.items()}
        o, state = fla.chunk_log_linear_attn(**part, initial_state=state, output_final_state=True,
                                             scale=0.5)  # fmt: skip
        assert state.offsets.tolist() == [end] * B
        out.append(o)
    o, want = torch.cat(out, 1), twin(**x, scale=0.5)
    near(o, want, 1e-12)
    expected = torch.autograd.grad(want.square().sum(), [*x.values()])
    for y, z in zip(torch.autograd.grad(o.square().sum(), [*x.values()]), expected, strict=True):
        near(y, z, 1e-11)


def test_packed():
    x, cuts = make(batch=1), (0, 130, 130, 330)
    o, state = fla.chunk_log_linear_attn(**x, cu_seqlens=list(cuts), output_final_state=True)
    assert state.offsets.tolist() == [130, 0, 200]
    rest, more = make(90, batch=1), (0, 40, 50, 90)
    second, last = fla.chunk_log_linear_attn(
        **rest, cu_seqlens=torch.tensor(more), initial_state=state, output_final_state=True
    )
    assert last.offsets.tolist() == [170, 10, 240]
    for i in range(3):
        one, two = slice(*cuts[i : i + 2]), slice(*more[i : i + 2])
        whole = {key: torch.cat([x[key][:, one], rest[key][:, two]], 1) for key in x}
        found = torch.cat([o[:, one], second[:, two]], 1)
        near(found, twin(**whole), 1e-12)


def test_sixteen_bits():
    x = {key: y.bfloat16() for key, y in make(100).items()}
    o, state = fla.chunk_log_linear_attn(**x, output_final_state=True)
    assert o.dtype is torch.bfloat16 and state.ht.dtype is torch.float32
    near(o.double(), twin(**{key: y.double() for key, y in x.items()}), 2**-8)


def test_errors():
    x = make(20)
    run = fla.chunk_log_linear_attn
    with pytest.raises(ValueError, match=r"level_scales has 5 levels; expected at least 6, for 20"):
        run(**x | {"level_scales": x["level_scales"][..., :5]})
    for key in ("g", "level_scales"):
        with pytest.raises(ValueError, match=f"chunk_log_linear_attn: {key} has shape"):
            run(**x | {key: x[key][:, :, :2]})
    with pytest.raises(TypeError, match="initial_state is a Tensor; expected a LogLinearAttention"):
        run(**x, initial_state=torch.zeros(2))
    _, state = run(**x, output_final_state=True)
    state.offsets[0] = 3
    with pytest.raises(ValueError, match=r"initial_state.offsets are \[3, 20\]"):
        run(**x, initial_state=state)
    with pytest.raises(ValueError, match="initial_state has 2 sequences; expected 1"):
        run(**{key: y[:1] for key, y in x.items()}, initial_state=state)


@fla_package.needed
def test_against_fla():
    x = {key: y.float() for key, y in make(100).items()}
    want = fla_package.naive("log_linear_attn").naive_log_linear_attn(**x)
    near(fla.chunk_log_linear_attn(**x)[0], want, 1e-5)
