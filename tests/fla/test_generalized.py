"""Comba, Gated DeltaNet 2, IPLR, DeltaProduct and the Oja rule in linattn.torch.fla."""

from itertools import pairwise

import fla_package
import fla_twins as twins
import pytest
from bounds import close

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fla_cases import CUTS, B, H, K, T, V, norm, rand  # noqa: E402
from fla_twins import near  # noqa: E402

from linattn.torch import fla  # noqa: E402

#: (twin, operands by fla's names and ours, value heads, writes per token, functions, options)
CASES = {
    "comba": (twins.comba, "q k v p g beta", 2 * H, 1, ("chunk", "fused_recurrent"), {}),
    "gdn2": (twins.gdn2, "q k v g=gk b=erase w", 2 * H, 1, ("chunk", "fused_recurrent"), {}),
    "iplr_delta_rule": (twins.iplr, "q k v a b", H, 1, ("chunk", "fused_recurrent"), {}),
    "gated_oja_rule": (
        twins.gated_oja_rule, "q k v=u gv beta", 2 * H, 1, ("chunk", "fused_recurrent"), {},
    ),
    "gated_delta_product": (
        twins.gated_delta_product, "q k v g beta", H, 2, ("chunk",), {"num_householder": 2},
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", CASES)


def make(name, batch=B, heads=None):
    _, names, own, more, _, _ = CASES[name]
    x = twins.operands(heads or own, batch, more)
    pairs = (pair.partition("=") for pair in names.split())
    return {key: x[given or key] for key, _, given in pairs}


def start_of(x, n=None, seed=20):
    return rand(n or len(x["v"]), x["v"].shape[2], K, V, seed=seed)


def call(name, x, form="chunk", **options):
    return getattr(fla, f"{form}_{name}")(**x, **CASES[name][-1], **options)


@EACH
def test_against_the_twin(name):
    x = {key: y.requires_grad_() for key, y in make(name).items()}
    start = start_of(x).requires_grad_()
    want, state = CASES[name][0](**x, start=start)
    weight = rand(*want.shape, seed=30)
    also = [*x.values(), start]
    expected = torch.autograd.grad((want * weight).sum() + state.square().sum(), also)
    for form in CASES[name][4]:
        o, s = call(name, x, form, initial_state=start, output_final_state=True)
        near(o, want, 1e-13)
        near(s, state, 1e-13)
        assert o.is_contiguous() and s.is_contiguous()
        found = torch.autograd.grad((o * weight).sum() + s.square().sum(), also)
        for y, z in zip(found, expected, strict=True):
            near(y, z, 1e-12)
        alone, nothing = call(name, x, form)
        assert nothing is None
        want_alone, _ = CASES[name][0](**x, start=torch.zeros_like(start))
        near(alone, want_alone, 1e-13)


@EACH
def test_packed(name):
    """With cu_seqlens, an empty sequence among them, as one by one."""
    x = make(name, batch=1)
    starts = start_of(x, 3)
    for form in CASES[name][4]:
        o, s = call(name, x, form, cu_seqlens=torch.tensor(CUTS), initial_state=starts,
                    output_final_state=True)  # fmt: skip
        again, _ = call(name, x, form, cu_seqlens=list(CUTS), initial_state=starts)
        assert torch.equal(o, again)
        for i, (begin, end) in enumerate(pairwise(CUTS)):
            if begin == end:
                close(s[i], starts[i], atol=0.0)
                continue
            part = {key: y[:, begin * (n := y.shape[1] // T) : end * n] for key, y in x.items()}
            want, state = CASES[name][0](**part, start=starts[i : i + 1])
            near(o[:, begin:end], want, 1e-13)
            near(s[i : i + 1], state, 1e-13)


@EACH
def test_sixteen_bits(name):
    x = {key: y.bfloat16() for key, y in make(name).items()}
    wide = {key: y.double() for key, y in x.items()}
    want, state = CASES[name][0](**wide, start=torch.zeros_like(start_of(x)))
    mixed = {key: y.float() if key in ("g", "beta", "b", "w") else y for key, y in x.items()}
    for given in (x, mixed):
        o, s = call(name, given, output_final_state=True)
        assert o.dtype is torch.bfloat16 and s.dtype is torch.float32
        # the products of strengths with tokens are rounded to 16 bits as well
        near(o.double(), want, 2**-6)
        near(s.double(), state, 2**-6)


@EACH
def test_scale(name):
    x = make(name)
    o, _ = call(name, x)
    doubled, _ = call(name, x, scale=2 * K**-0.5)
    close(doubled, 2 * o, atol=1e-15)


@pytest.mark.parametrize("name", ["comba", "gdn2", "gated_delta_product"])
def test_norms(name):
    x = make(name)
    raw = {key: 3 * y if key in ("q", "k", "p") else y for key, y in x.items()}
    same = {key: norm(y) if key in ("q", "k", "p") else y for key, y in raw.items()}
    for form in CASES[name][4]:
        o, _ = call(name, raw, form, use_qk_l2norm_in_kernel=True)
        want, _ = call(name, same, form)
        near(o, want, 1e-13)


def test_gates_of_gdn2():
    x = make("gdn2")
    A_log, bias = rand(2 * H, seed=20), rand(2 * H * K, seed=21)
    raw = x | {"g": rand(*x["g"].shape, seed=22)}
    shifted = raw["g"] + bias.view(2 * H, K)
    rate = A_log[:, None].exp()
    for more, g in (
        ({}, -rate * torch.nn.functional.softplus(shifted)),
        ({"lower_bound": -4.0}, -4.0 * (rate * shifted).sigmoid()),
    ):
        want, _ = twins.gdn2(**x | {"g": g}, start=torch.zeros_like(start_of(x)))
        for form in CASES["gdn2"][4]:
            o, _ = call("gdn2", raw, form, use_gate_in_kernel=True, A_log=A_log, dt_bias=bias,
                        **more)  # fmt: skip
            close(o, want, atol=1e-12)
    first = start_of(x)
    o, s = call("gdn2", x, initial_state=first, output_final_state=True)
    again, turned = call("gdn2", x, initial_state=first.mT, output_final_state=True,
                         state_v_first=True)  # fmt: skip
    assert torch.equal(o, again) and torch.equal(s, turned.mT)


def test_what_may_be_left_out():
    x = make("comba")
    q, k, v, p, g = (x[key] for key in ("q", "k", "v", "p", "g"))
    one = torch.ones_like(g)
    o, _ = fla.chunk_comba(q, k, v, None, g)
    close(o, fla.chunk_comba(q, k, v, k, g, one)[0], atol=0.0)
    o, _ = fla.fused_recurrent_comba(q, k, p, v, g)
    close(o, fla.fused_recurrent_comba(q, k, p, v, g, one)[0], atol=0.0)
    x = make("gated_delta_product") | {"g": None}
    o, _ = call("gated_delta_product", x)
    close(o, call("gated_delta_product", x | {"g": torch.zeros(B, T, H)})[0], atol=1e-15)


def test_options_of_the_oja_rule():
    x = make("gated_oja_rule")
    raw = x | {"q": 3 * x["q"], "k": 2 * x["k"]}
    both = call("gated_oja_rule", raw, use_qk_l2norm_in_kernel=True)[0]
    assert torch.equal(both, call("gated_oja_rule", raw, use_q_l2norm=True, use_k_l2norm=True)[0])
    near(both, call("gated_oja_rule", raw | {key: norm(raw[key]) for key in "qk"})[0], 1e-13)
    run = fla.fused_recurrent_gated_oja_rule
    q, k, v = (x[key] for key in "qkv")
    near(run(q, k, v)[0], run(q, k, v, torch.zeros_like(v), torch.ones(B, T, 2 * H))[0], 1e-15)
    with pytest.raises(ValueError, match="chunk_gated_oja_rule: gv has shape"):
        call("gated_oja_rule", x | {"gv": x["beta"]})
    with pytest.raises(TypeError, match="chunk_gated_oja_rule: unexpected keyword head_first"):
        call("gated_oja_rule", x, head_first=False)


def test_errors():
    x = make("comba")
    for key, error in (("p", "p has shape .*H, K"), ("beta", "beta has shape .*HV"),
                       ("g", "g has shape .*HV")):  # fmt: skip
        with pytest.raises(ValueError, match=f"chunk_comba: {error}"):
            call("comba", x | {key: x[key][:, :, :1]})
    with pytest.raises(TypeError, match="chunk_comba: g is None; expected a tensor"):
        call("comba", x | {"g": None})
    x = make("gdn2")
    for key in ("b", "w", "g"):
        with pytest.raises(ValueError, match=f"fused_recurrent_gdn2: {key} has shape"):
            call("gdn2", x | {key: x[key][..., 0]}, "fused_recurrent")
    with pytest.raises(NotImplementedError, match="chunk_gdn2: cp_context"):
        call("gdn2", x, cp_context=object())
    x = make("iplr_delta_rule")
    with pytest.raises(ValueError, match="chunk_iplr_delta_rule: a has shape"):
        call("iplr_delta_rule", x | {"a": x["a"][..., 0]})
    x = make("gated_delta_product")
    with pytest.raises(ValueError, match=r"k has shape \(2, 22, 3, 4\); expected \(2, 33, 3, 4\)"):
        fla.chunk_gated_delta_product(**x, num_householder=3)
    with pytest.raises(ValueError, match="num_householder is 0; expected a positive integer"):
        fla.chunk_gated_delta_product(**x, num_householder=0)
    with pytest.raises(ValueError, match="g has shape"):
        call("gated_delta_product", x | {"g": x["beta"]})
    with pytest.raises(ValueError, match="v has shape"):
        call("gated_delta_product", x | {"v": x["v"][:, :5]})


def _naive_iplr(q, k, v, a, b):
    o, s = fla_package.naive("generalized_delta_rule/iplr").iplr_recurrence(
        *(x.transpose(1, 2) for x in (q, k, v, a, b))
    )
    return o.transpose(1, 2), s


def _naive(family, function, **options):
    run = lambda **x: getattr(fla_package.naive(family), function)(  # noqa: E731
        **x, output_final_state=True, **options
    )
    return run


@fla_package.NEEDED
@pytest.mark.parametrize("name", [x for x in CASES if x != "gated_oja_rule"])  # fla has none
def test_against_fla(name):
    """fla's own references; of Comba's, the recurrent one reads the decayed state, as no kernel."""
    run = {
        "comba": _naive("comba", "naive_chunk_comba"),
        "gdn2": _naive("gdn2", "naive_recurrent_gdn2"),
        "iplr_delta_rule": _naive_iplr,
        "gated_delta_product": _naive(
            "gated_delta_product", "naive_recurrent_gated_delta_product", scale=K**-0.5,
            num_householder=2,
        ),
    }[name]  # fmt: skip
    x = {key: y.float().requires_grad_() for key, y in make(name, heads=H).items()}
    want, state = run(**x)
    o, s = call(name, x, output_final_state=True)
    near(o, want, 1e-5)
    near(s, state, 1e-5)
    expected = torch.autograd.grad(want.square().sum() + state.sum(), [*x.values()])
    found = torch.autograd.grad(o.square().sum() + s.sum(), [*x.values()])
    for y, z in zip(found, expected, strict=True):
        near(y, z, 1e-5)
