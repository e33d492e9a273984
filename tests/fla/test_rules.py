"""What single rules of linattn.torch.fla take besides: options, gates, forms, compiled calls."""

import importlib

import fla_package
import fla_twins as twins
import pytest
import torch
from bounds import close
from fla_cases import CUTS, B, H, K, T, V, norm, rand
from fla_families import FAMILIES, FORMS, D
from fla_twins import near

import linattn.torch
from linattn.torch import fla

LOOSE = FAMILIES["mesa_net"].tolerances[0]
PRECONDITIONED = pytest.mark.parametrize("name", ["precond_gated_delta_rule", "precond_kda"])


def make(name, batch=B):
    return FAMILIES[name].make(batch)


def call(name, x, /, form="chunk", *start, **options):
    return FAMILIES[name].run(form, x, *start, **options)


@pytest.mark.parametrize(
    "name", ["comba", "gdn2", "iplr_delta_rule", "gated_oja_rule", "gated_delta_product"]
)
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


@PRECONDITIONED
def test_options_of_preconditioned_rules(name):
    x = make(name)
    raw = x | {"q": 3 * x["q"], "k": 2 * x["k"]}
    same = raw | {"q": norm(raw["q"]), "k": norm(raw["k"])}
    none = torch.zeros(B, 2 * H, K, V), torch.zeros(B, H, K)
    center = rand(H, seed=15)
    want, _ = twins.preconditioned(**same, start=none, x=2.0, eps=0.1,
                                   center=center[:, None])  # fmt: skip
    for form in FORMS:
        o, _ = call(name, raw, form, use_qk_l2norm_in_kernel=True, x=2.0, eps=0.1,
                       log_atk_scale=center)  # fmt: skip
        near(o, want, 1e-13)


def test_gates_of_preconditioned_rules():
    """What the recurrent form takes besides: gates of both kinds, or none."""
    x = make("precond_gated_delta_rule")
    gk = make("precond_kda")["g"]
    g = x.pop("g")
    run = fla.fused_recurrent_precond_gated_delta_rule
    none = torch.zeros(B, 2 * H, K, V), torch.zeros(B, H, K)
    for gates, both in (({"g": g, "gk": gk}, gk + g[..., None]), ({}, 0 * g)):
        o, _, _ = run(**x, **gates, use_qk_l2norm_in_kernel=False)
        near(o, twins.preconditioned(**x, g=both, start=none)[0], 1e-13)
    gv = -rand(B, T, 2 * H, V, seed=11).abs()
    o, _, _ = run(**x, g=g, gv=g[..., None].expand_as(gv), use_qk_l2norm_in_kernel=False)
    near(o, twins.preconditioned(**x, g=2 * g, start=none)[0], 1e-13)
    raw, A_log = rand(B, T, 2 * H, K, seed=22), rand(2 * H, seed=23)
    decays = -A_log.exp()[:, None] * torch.nn.functional.softplus(raw)
    want, _ = twins.preconditioned(**x, g=decays, start=none)
    for form in FORMS:
        o, _ = call("precond_kda", x | {"g": raw}, form, use_gate_in_kernel=True, A_log=A_log)
        near(o, want, 1e-12)


def test_an_empty_sequence_of_lightnet():
    x = make("lightnet", batch=1)
    x["k"].requires_grad_()
    o, (_, z) = fla.chunk_lightnet(**x, cu_seqlens=list(CUTS), output_final_state=True)
    assert z[1].isneginf().all() and not z[0].isneginf().any()
    again, (_, same) = fla.chunk_lightnet(
        **x, cu_seqlens=list(CUTS), initial_state=(None, z.detach())
    )
    assert torch.equal(z[1], same[1])
    for y in (o, again):
        assert torch.autograd.grad(y.sum(), x["k"])[0].isfinite().all()


def test_mesa_token_by_token():
    x, start = make("mesa_net"), FAMILIES["mesa_net"].starts(B)
    want, last = call("mesa_net", x, "chunk", start, output_final_state=True)
    state, out = start, []
    for i in range(T):
        q, k, v, g, beta = (x[key][:, i] for key in ("q", "k", "v", "g", "beta"))
        o, *state = fla.mesa_net_decoding_one_step(q, k, v, g, x["lamb"], beta, *state)
        out.append(o)
    near(torch.stack(out, 1), want, LOOSE)
    for y, z in zip(state, last, strict=True):
        near(y, z, 1e-14)


def test_options_of_mesa():
    x = make("mesa_net")
    raw = x | {"q": 3 * x["q"], "k": 2 * x["k"]}
    same = raw | {"q": norm(raw["q"]), "k": norm(raw["k"])}
    near(call("mesa_net", raw, use_qk_l2norm_in_kernel=True)[0], call("mesa_net", same)[0], LOOSE)
    assert not call("mesa_net", x, max_CG_iteration=0)[0].any()
    first, best = (call("mesa_net", x, max_CG_iteration=n)[0] for n in (1, 30))
    assert (first - best).abs().max() > 1e-3
    near(
        call("mesa_net", x, max_CG_iteration=K)[0], best, LOOSE
    )  # conjugate gradients end in K steps


def test_errors_of_a_token_of_mesa():
    x, start = make("mesa_net"), FAMILIES["mesa_net"].starts(B)
    q, k, v, g, beta = (x[key][:, 0] for key in ("q", "k", "v", "g", "beta"))
    with pytest.raises(ValueError, match=r"decoding_one_step: v has shape .*\[B, H, V\]"):
        fla.mesa_net_decoding_one_step(q, k, x["v"], g, x["lamb"], beta, *start)
    with pytest.raises(TypeError, match="g is None; expected a tensor"):
        fla.mesa_net_decoding_one_step(q, k, v, None, x["lamb"], beta, *start)


def test_norms_and_decayed_reads_with_momentum():
    """fla's defaults: q, k and p have norm 1, and p reads the memory after its decay."""
    x = make("momentum_delta_rule")
    x |= {key: 3 * x[key] for key in "qkp"}
    same = x | {key: norm(x[key]) for key in "qkp"}
    same["p"] = x["log_alpha"].exp()[..., None] * same["p"]
    o, _ = fla.chunk_momentum_delta_rule(**x)
    near(o, twins.momentum(**same, start=0 * FAMILIES["momentum_delta_rule"].starts(B))[0], 1e-13)


def test_what_is_left_out_with_momentum():
    """p is k, and beta and eta are 1; no state is returned."""
    x = make("momentum_delta_rule")
    few = {key: x[key] for key in ("q", "k", "v", "log_alpha", "log_mu")}
    one = torch.ones_like(x["beta"])
    o, end = call("momentum_delta_rule", few, scale=0.5)
    assert end is None
    whole = few | {"p": x["k"], "beta": one, "eta": one}
    want, _ = call("momentum_delta_rule", whole, scale=0.5)
    assert torch.equal(o, want)


@fla_package.needed
def test_layer_of_fla_with_momentum():
    """fla's own layer with `patch_fla`: in both modes, and in pieces with its cache."""
    torch.manual_seed(0)
    modeling, x = importlib.import_module("fla.layers.momentum_deltanet"), torch.randn(2, 20, 64)
    cache = importlib.import_module("fla.models.utils").Cache()
    with linattn.torch.patch_fla(), torch.no_grad():
        layer = modeling.MomentumDeltaNet(hidden_size=64, num_heads=2, head_dim=32, layer_idx=0)
        whole, *_ = layer.eval()(x)
        layer.mode = "fused_recurrent"
        assert torch.equal(layer(x)[0], whole)
        out = []
        for piece in x.split([12, *[1] * 8], 1):
            o, _, cache = layer(piece, past_key_values=cache, use_cache=True)
            out.append(o)
    near(torch.cat(out, 1), whole, 1e-5)


def test_gates_of_value_channels():
    """A raw gate, and a strength of each value channel."""
    x = make("gated_delta_rule, gv beta g")
    A_log, bias = rand(2 * H, seed=12), rand(2 * H, seed=13)
    x["beta"] = rand(B, T, 2 * H, V, seed=14).sigmoid()
    o, _ = fla.fused_recurrent_gated_delta_rule(**x, use_gate_in_kernel=True, A_log=A_log,
                                                dt_bias=bias)  # fmt: skip
    g = -A_log.exp() * torch.nn.functional.softplus(x["g"] + bias)
    near(o, twins.by_value(**x | {"g": g}, start=torch.zeros(B, 2 * H, K, V))[0], 1e-12)


def test_sums_of_rebased():
    """The weights are not divided by their sums, which are returned beside the outputs."""
    x = make("rebased")
    want, _ = FAMILIES["rebased, True False"].twin(**x, start=())
    o, total = fla.parallel_rebased(**x, return_both=True)
    near(o.transpose(1, 2), want, 1e-13)
    near(o / (total.unsqueeze(-1) + 1e-6), call("rebased", x, "parallel")[0].transpose(1, 2), 1e-13)


def test_rwkv4():
    """Against sums without the common factor, in two parts."""
    (k, v), w, u = make("hgrn").values(), rand(D, seed=3), rand(D, seed=4)
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


X = twins.operands()


def comba(q):
    return fla.chunk_comba(q, X["k"], X["v"], X["p"], X["g"], X["beta"])[0]


def slots(q):
    return fla.chunk_gsa(q, X["k"], X["v"], X["a"], -X["a"].abs())[0]


def mesa(q):
    return fla.chunk_mesa_net(q, X["k"], X["v"], X["g"], X["beta"], torch.ones_like(q[0, 0]))[0]


COMPILED = [pytest.param(comba, True, marks=pytest.mark.slow), (slots, False),
         pytest.param(mesa, False, marks=pytest.mark.slow)]  # fmt: skip


@pytest.mark.parametrize(("run", "whole"), COMPILED)
def test_compiled(run, whole):
    """In one graph, or with a break where PyTorch cannot trace a gradient."""
    q, same = X["q"].clone().requires_grad_(), X["q"].clone().requires_grad_()
    o, want = torch.compile(run, fullgraph=whole, backend="eager")(q), run(same)
    assert o.shape[2] == H
    near(o, want, 1e-15)
    for y in (o, want):
        y.square().sum().backward()
    near(q.grad, same.grad, 1e-15)
