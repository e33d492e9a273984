"""Comba, Gated DeltaNet 2, IPLR, DeltaProduct and the Oja rule in linattn.torch.fla."""

import fla_package
import fla_twins as twins
import pytest
import torch
from bounds import close
from fla_cases import B, H, K, T, V, norm, rand
from fla_families import FAMILIES, FORMS
from fla_twins import near

from linattn.torch import fla

NAMES = ("comba", "gdn2", "iplr_delta_rule", "gated_oja_rule", "gated_delta_product")
EACH = pytest.mark.parametrize("name", NAMES)


def make(name):
    return FAMILIES[name].make(B)


def call(name, x, form="chunk", **options):
    return FAMILIES[name].run(form, x, **options)


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
    for form in FAMILIES[name].forms:
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
        want, _ = twins.gdn2(**x | {"g": g}, start=torch.zeros(B, 2 * H, K, V))
        for form in FORMS:
            o, _ = call("gdn2", raw, form, use_gate_in_kernel=True, A_log=A_log, dt_bias=bias,
                        **more)  # fmt: skip
            close(o, want, atol=1e-12)


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
@pytest.mark.parametrize("name", [x for x in NAMES if x != "gated_oja_rule"])  # fla has none
def test_against_fla(name):
    """fla's own references; of Comba's, the recurrent one reads the decayed state, as no kernel."""
    run = {
        "comba": _naive("comba", "naive_chunk_comba"),
        "gdn2": _naive("gdn2", "naive_recurrent_gdn2"),
        "iplr_delta_rule": _naive_iplr,
        "gated_delta_product": _naive("gated_delta_product", "naive_recurrent_gated_delta_product",
                                      scale=K**-0.5, num_householder=2),
    }[name]  # fmt: skip
    x = {key: y[:, :, :H].float().requires_grad_() for key, y in make(name).items()}
    want, state = run(**x)
    o, s = call(name, x, output_final_state=True)
    near(o, want, 1e-5)
    near(s, state, 1e-5)
    expected = torch.autograd.grad(want.square().sum() + state.sum(), [*x.values()])
    found = torch.autograd.grad(o.square().sum() + s.sum(), [*x.values()])
    for y, z in zip(found, expected, strict=True):
        near(y, z, 1e-5)
