"""MesaNet in linattn.torch.fla."""

import fla_package
import pytest
import torch
from fla_cases import B, H, K, T, V, norm
from fla_families import FAMILIES
from fla_twins import near

from linattn.torch import fla

FAMILY = FAMILIES["mesa_net"]
LOOSE = FAMILY.tolerances[0]


def make():
    return FAMILY.make(B)


def starts():
    return FAMILY.starts(B)


def call(x, start=(None, None), **options):
    return FAMILY.run("chunk", x, start, **options)


def test_token_by_token():
    x = make()
    want, last = call(x, starts(), output_final_state=True)
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
    o, state = call(x, output_final_state=True)
    near(o, want, 1e-5)
    for y, z in zip(state, (h, s), strict=True):
        near(y, z, 1e-6)
