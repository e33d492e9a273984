"""LightNet, gated slot attention and ABC in linattn.torch.fla."""

from itertools import pairwise

import fla_package
import fla_twins as twins
import pytest
import torch
from fla_cases import CUTS, B, T
from fla_families import FAMILIES
from fla_twins import near

from linattn.torch import fla


def make(name, batch=B):
    return FAMILIES[name].make(batch)


def call(name, x, form="chunk", **options):
    return getattr(fla, f"{form}_{name}")(**x, **options)


def test_an_empty_sequence_of_lightnet():
    x = make("lightnet", batch=1)
    x["k"].requires_grad_()
    o, (_, z) = call("lightnet", x, cu_seqlens=list(CUTS), output_final_state=True)
    assert z[1].isneginf().all() and not z[0].isneginf().any()
    again, (_, same) = call("lightnet", x, cu_seqlens=list(CUTS), initial_state=(None, z.detach()))
    assert torch.equal(z[1], same[1])
    for y in (o, again):
        assert torch.autograd.grad(y.sum(), x["k"])[0].isfinite().all()


@pytest.mark.parametrize("cuts", [None, CUTS])
def test_reverse(cuts):
    x = make("gsa", batch=1 if cuts else B)
    start = FAMILIES["gsa"].starts(3 if cuts else B)
    o, s = call("gsa", x, "fused_recurrent", initial_state=start, reverse=True, cu_seqlens=cuts,
                output_final_state=True)  # fmt: skip
    for i, (begin, end) in enumerate(pairwise(cuts or (0, T))):
        if begin == end:
            continue
        own = tuple(y[i : i + 1] for y in start) if cuts else start
        part = {key: y[:, begin:end].flip(1) for key, y in x.items()}
        want, state = twins.gsa(**part, start=own)
        near(o[:, begin:end], want.flip(1), 1e-13)
        for y, z in zip(s, state, strict=True):
            near(y[i : i + 1] if cuts else y, z, 1e-12)


def test_errors():
    x = make("gsa")
    for key in ("k", "v", "s", "g"):
        with pytest.raises(ValueError, match=f"chunk_gsa: {key} has shape"):
            call("gsa", x | {key: x[key][:, :3]})
    with pytest.raises(ValueError, match="chunk_abc: q has 2 heads; expected a multiple of 3"):
        call("abc", make("abc") | {"q": x["q"][:, :, :2]})
    hk, hv = FAMILIES["gsa"].starts(B)
    with pytest.raises(ValueError, match=r"initial_state\[1\] has shape .* \[N, H, M, V\]"):
        call("gsa", x, "fused_recurrent", initial_state=(hk, hv.mT))
    with pytest.raises(TypeError, match="initial_state is a Tensor; expected a pair"):
        call("gsa", x, initial_state=hk)
    with pytest.raises(TypeError, match="chunk_gsa: unexpected keyword head_first"):
        call("gsa", x, head_first=True)
    with pytest.raises(TypeError, match="fused_recurrent_gsa: s is None; expected a tensor"):
        call("gsa", x | {"s": None}, "fused_recurrent")
    x = make("lightnet")
    with pytest.raises(ValueError, match="chunk_lightnet: v has shape"):
        call("lightnet", x | {"v": torch.cat([x["v"]] * 2, 2)})
    with pytest.raises(ValueError, match=r"initial_state\[1\] has shape .*\[N, 1, H, K\]"):
        call("lightnet", x, initial_state=(None, hk))


@fla_package.NEEDED
def test_against_fla():
    x = {key: y.float() for key, y in make("gsa").items()}
    start = tuple(y.float() for y in FAMILIES["gsa"].starts(B))
    naive = fla_package.naive("gsa").naive_recurrent_gsa
    for given in (x, {key: y for key, y in x.items() if key != "g"}):
        want, state = naive(**given, initial_state=start, output_final_state=True)
        o, s = call("gsa", given, initial_state=start, output_final_state=True)
        near(o, want, 1e-5)
        for y, z in zip(s, state, strict=True):
            near(y, z, 1e-5)
    x.pop("g")
    want, _ = fla_package.naive("abc").naive_cumsum_abc(*(y.transpose(1, 2) for y in x.values()))
    near(call("abc", x)[0], want.transpose(1, 2), 1e-5)
