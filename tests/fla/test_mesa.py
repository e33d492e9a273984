"""MesaNet in linattn.torch.fla."""

from itertools import pairwise

import fla_package
import fla_twins as twins
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fla_cases import CUTS, B, H, K, T, V, norm, rand  # noqa: E402
from fla_twins import near  # noqa: E402

from linattn.torch import fla  # noqa: E402

#: The error of x is that of q times the condition of h + diag(lamb), below 20 here.
LOOSE, LOOSER = 1e-12, 1e-11


def make(batch=B):
    x = twins.operands(batch=batch)
    return {key: x[key] for key in ("q", "k", "v", "g", "beta")} | {
        "lamb": 0.5 + rand(H, K, seed=12).sigmoid()
    }


def starts(n=B):
    half = rand(n, H, K, K, seed=20)
    return half @ half.mT / K, rand(n, H, K, V, seed=21)


def call(x, start=(None, None), **options):
    return fla.chunk_mesa_net(**x, h_kk_init=start[0], h_kv_init=start[1], **options)


def test_against_the_twin():
    x = {key: y.requires_grad_() for key, y in make().items()}
    start = [y.requires_grad_() for y in starts()]
    want, state = twins.mesa(**x, start=start)
    o, *found = call(x, start, output_final_state=True)
    assert o.is_contiguous()
    near(o, want, LOOSE)
    for y, z in zip(found, state, strict=True):
        near(y, z, 1e-14)
    also = [*x.values(), *start]
    expected = torch.autograd.grad(want.square().sum() + sum(y.square().sum() for y in state), also)
    found = torch.autograd.grad(o.square().sum() + sum(y.square().sum() for y in found), also)
    for y, z in zip(found, expected, strict=True):
        # a symmetric state's gradient is symmetric only together with its transpose
        y, z = (y + y.mT, z + z.mT) if y.shape == start[0].shape else (y, z)
        near(y, z, LOOSER)
    o, *nothing = call(x)
    assert nothing == [None, None]
    near(o, twins.mesa(**x, start=(torch.zeros(B, H, K, K), torch.zeros(B, H, K, V)))[0], LOOSE)


def test_packed():
    x = make(1)
    start = starts(3)
    o, *end = call(x, start, output_final_state=True, cu_seqlens=list(CUTS))
    for i, (begin, last) in enumerate(pairwise(CUTS)):
        own = [y[i : i + 1] for y in start]
        if begin == last:
            assert all(torch.equal(y[i : i + 1], z) for y, z in zip(end, own, strict=True))
            continue
        part = {key: y if key == "lamb" else y[:, begin:last] for key, y in x.items()}
        want, state = twins.mesa(**part, start=own)
        near(o[:, begin:last], want, LOOSE)
        for y, z in zip(end, state, strict=True):
            near(y[i : i + 1], z, 1e-14)


def test_token_by_token():
    x = make()
    want, *last = call(x, starts(), output_final_state=True)
    state, out = starts(), []
    for i in range(T):
        q, k, v, g, beta = (x[key][:, i] for key in ("q", "k", "v", "g", "beta"))
        o, *state = fla.mesa_net_decoding_one_step(q, k, v, g, x["lamb"], beta, *state)
        out.append(o)
    near(torch.stack(out, 1), want, LOOSE)
    for y, z in zip(state, last, strict=True):
        near(y, z, 1e-14)


def test_options():
    x = make()
    raw = x | {"q": 3 * x["q"], "k": 2 * x["k"]}
    same = raw | {"q": norm(raw["q"]), "k": norm(raw["k"])}
    near(call(raw, use_qk_l2norm_in_kernel=True)[0], call(same)[0], LOOSE)
    assert not call(x, max_CG_iteration=0)[0].any()
    first, best = (call(x, max_CG_iteration=n)[0] for n in (1, 30))
    assert (first - best).abs().max() > 1e-3
    near(call(x, max_CG_iteration=K)[0], best, LOOSE)  # conjugate gradients end in K steps
    few = {key: y.bfloat16() for key, y in x.items()}
    o, h, s = call(few, output_final_state=True)
    assert o.dtype is torch.bfloat16 and h.dtype is s.dtype is torch.float32
    wide = {key: y.double() for key, y in few.items()}
    near(o.double(), call(wide)[0], 2**-8)


def test_errors():
    x = make()
    for key in ("g", "beta", "lamb"):
        with pytest.raises(ValueError, match=f"chunk_mesa_net: {key} has shape"):
            call(x | {key: x[key][..., :2]})
    with pytest.raises(ValueError, match="h_kv_init has shape"):
        call(x, (None, torch.zeros(B, H, V, K)))
    with pytest.raises(ValueError, match="max_CG_iteration is -1; expected an integer of at lea"):
        call(x, max_CG_iteration=-1)
    q, k, v, g, beta = (x[key][:, 0] for key in ("q", "k", "v", "g", "beta"))
    with pytest.raises(ValueError, match=r"decoding_one_step: v has shape .*\[B, H, V\]"):
        fla.mesa_net_decoding_one_step(q, k, x["v"], g, x["lamb"], beta, *starts())
    with pytest.raises(TypeError, match="g is None; expected a tensor"):
        fla.mesa_net_decoding_one_step(q, k, v, None, x["lamb"], beta, *starts())


@fla_package.NEEDED
def test_against_fla():
    x = {key: y.float() for key, y in make().items()}
    x["v"] = x["v"][..., :K].contiguous()  # fla's references take as many values as keys
    want, h, s = fla_package.naive("mesa_net").naive_mesa_net_exact(**x)
    o, *state = call(x, output_final_state=True)
    near(o, want, 1e-5)
    for y, z in zip(state, (h, s), strict=True):
        near(y, z, 1e-6)
