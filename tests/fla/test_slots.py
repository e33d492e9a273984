"""LightNet, gated slot attention and ABC in linattn.torch.fla."""

from itertools import pairwise

import fla_package
import fla_twins as twins
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fla_cases import CUTS, B, H, K, T, V, rand  # noqa: E402
from fla_twins import near  # noqa: E402

from linattn.torch import fla  # noqa: E402

M = 6
FORMS = ("chunk", "fused_recurrent")
CASES = {
    "lightnet": (twins.lightnet, FORMS, False),
    "gsa": (twins.gsa, FORMS, True),
    "abc": (twins.gsa, ("chunk",), False),
}
EACH = pytest.mark.parametrize("name", CASES)


def make(name, batch=B, groups=1):
    x = {
        "q": rand(batch, T, H * groups, K), "k": rand(batch, T, H, K, seed=1),
        "v": rand(batch, T, H, V, seed=2),
    }  # fmt: skip
    if name != "lightnet":
        x["s"] = rand(batch, T, H, M, seed=3)
    if name == "gsa":
        x["g"] = -rand(batch, T, H, M, seed=4).abs()
    return x


def starts(name, n=B, zero=False):
    if name == "lightnet":
        s, z = rand(n, H, K, V, seed=5), rand(n, 1, H, K, seed=6)
        return (0 * s, None) if zero else (s, z)
    pair = rand(n, H, K, M, seed=5), rand(n, H, M, V, seed=6)
    return tuple(0 * x for x in pair) if zero else pair


def call(name, x, form="chunk", **options):
    return getattr(fla, f"{form}_{name}")(**x, **options)


@pytest.mark.parametrize("groups", [1, 2])
@EACH
def test_against_the_twin(name, groups):
    if groups > 1 and name == "lightnet":
        return
    x = {key: y.requires_grad_() for key, y in make(name, groups=groups).items()}
    start = tuple(y.requires_grad_() for y in starts(name))
    want, state = CASES[name][0](**x, start=start)
    also = [*x.values(), *start]
    expected = torch.autograd.grad(want.square().sum() + sum(y.square().sum() for y in state), also)
    for form in CASES[name][1]:
        o, s = call(name, x, form, initial_state=start, output_final_state=True)
        near(o, want, 1e-13)
        found = torch.autograd.grad(o.square().sum() + sum(y.square().sum() for y in s), also)
        for y, z in zip((*s, *found), (*state, *expected), strict=True):
            near(y, z, 1e-12)
        o, nothing = call(name, x, form)
        assert nothing is None or nothing[0] is None
        assert o.is_contiguous()
        want_alone, _ = CASES[name][0](**x, start=starts(name, zero=True))
        near(o, want_alone, 1e-13)


@EACH
def test_gradients_without_states(name):
    x = {key: y.requires_grad_() for key, y in make(name).items()}
    want, _ = CASES[name][0](**x, start=starts(name, zero=True))
    o, _ = call(name, x)
    expected = torch.autograd.grad(want.square().sum(), [*x.values()])
    for y, z in zip(torch.autograd.grad(o.square().sum(), [*x.values()]), expected, strict=True):
        near(y, z, 1e-12)


@pytest.mark.parametrize("name", ["lightnet", "gsa"])
@pytest.mark.parametrize("gated", [False, True])
def test_packed(name, gated):
    """With cu_seqlens, an empty sequence among them, as one by one."""
    x = make(name, batch=1)
    if not gated:
        x.pop("g", None)
    start = starts(name, 3)
    for form in FORMS:
        o, s = call(name, x, form, cu_seqlens=list(CUTS), initial_state=start,
                    output_final_state=True)  # fmt: skip
        for i, (begin, end) in enumerate(pairwise(CUTS)):
            own = tuple(y[i : i + 1] for y in start)
            if begin == end:
                assert all(torch.equal(y[i : i + 1], z) for y, z in zip(s, own, strict=True))
                continue
            part = {key: y[:, begin:end] for key, y in x.items()}
            want, state = CASES[name][0](**part, start=own)
            near(o[:, begin:end], want, 1e-13)
            for y, z in zip(s, state, strict=True):
                near(y[i : i + 1], z, 1e-12)
    if name == "lightnet":
        x["k"].requires_grad_()
        o, (_, z) = call(name, x, cu_seqlens=list(CUTS), output_final_state=True)
        assert z[1].isneginf().all() and not z[0].isneginf().any()
        again, (_, same) = call(name, x, cu_seqlens=list(CUTS), initial_state=(None, z.detach()))
        assert torch.equal(z[1], same[1])
        for y in (o, again):
            assert torch.autograd.grad(y.sum(), x["k"])[0].isfinite().all()


@pytest.mark.parametrize("cuts", [None, CUTS])
def test_reverse(cuts):
    x = make("gsa", batch=1 if cuts else B)
    start = starts("gsa", 3 if cuts else B)
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


def test_lightnet_by_value_first():
    x, (s, z) = make("lightnet"), starts("lightnet")
    for form in FORMS:
        o, (end, _) = call("lightnet", x, form, initial_state=(s, z), output_final_state=True)
        same, (turned, _) = call("lightnet", x, form, initial_state=(s.mT, z), state_v_first=True,
                                 output_final_state=True)  # fmt: skip
        assert torch.equal(o, same) and torch.equal(end, turned.mT)


@EACH
def test_sixteen_bits(name):
    x = {key: y.bfloat16() for key, y in make(name).items()}
    wide = {key: y.double() for key, y in x.items()}
    want, state = CASES[name][0](**wide, start=starts(name, zero=True))
    o, s = call(name, x, output_final_state=True)
    assert o.dtype is torch.bfloat16
    near(o.double(), want, 2**-6)
    for y, z in zip(s, state, strict=True):
        assert y.dtype is torch.float32
        near(y.double(), z, 2**-6)


def test_errors():
    x = make("gsa")
    for key in ("k", "v", "s", "g"):
        with pytest.raises(ValueError, match=f"chunk_gsa: {key} has shape"):
            call("gsa", x | {key: x[key][:, :3]})
    with pytest.raises(ValueError, match="chunk_abc: q has 2 heads; expected a multiple of 3"):
        call("abc", make("abc") | {"q": x["q"][:, :, :2]})
    hk, hv = starts("gsa")
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
    start = tuple(y.float() for y in starts("gsa"))
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
