"""linattn.torch.fla against a loop over the tokens."""

import pytest
import torch
import torch.nn.functional as F
from bounds import close
from fla_cases import CUTS, B, H, K, T, inputs, loop, make, norm, rand, tokens
from fla_families import FAMILIES, FORMS

from linattn.torch import fla


@pytest.mark.parametrize("form", FORMS)
def test_normalised_linear_attention(form):
    q, k, v = (x.abs() for x in tokens())
    run = getattr(fla, f"{form}_linear_attn")
    o, (s, z) = run(q, k, v, normalize=True, output_final_state=True)
    num, state = loop(q, k, v)
    den = K**-0.5 * (q * k.cumsum(1)).sum(-1, keepdim=True)
    close(o, num / (den + 1e-10), atol=1e-13)
    close(s, state, atol=1e-13)
    close(z, k.sum(1, keepdim=True), atol=1e-13)
    first, half = run(q[:, :5], k[:, :5], v[:, :5], normalize=True, output_final_state=True)
    second, end = run(q[:, 5:], k[:, 5:], v[:, 5:], normalize=True, initial_state=half,
                      output_final_state=True)  # fmt: skip
    close(torch.cat([first, second], 1), o, atol=1e-13)
    close(end[1], z, atol=1e-13)
    with pytest.raises(TypeError, match="initial_state is a tuple of 1; expected a pair"):
        run(q, k, v, normalize=True, initial_state=(s,))


def test_decays_of_heads():
    x = make("simple_gla")
    q, k, v = x["q"], x["k"], x["v"]
    o, _ = fla.chunk_simple_gla(q, k, v, g_gamma=x["g_gamma"])
    close(o, loop(q, k, v, g=x["g_gamma"].expand(B, T, H * 2))[0], atol=1e-13)
    o, _ = fla.fused_recurrent_simple_gla(q, k, v)
    close(o, loop(q, k, v)[0], atol=1e-13)
    with pytest.raises(ValueError, match="g and g_gamma are both given"):
        fla.chunk_simple_gla(q, k, v, x["g"], x["g_gamma"])


def test_a_bonus_serves_all_heads_of_values():
    """u [H, K] belongs to heads of keys, also where these are as many as the groups."""
    q, k, v = tokens(2)
    q, k, v, u = q[:, :, :2], k[:, :, :2], v[:, :, :4], rand(2, K, seed=5)
    w = -rand(B, T, 4, K, seed=6).abs()
    for run in (fla.chunk_rwkv6, fla.fused_recurrent_rwkv6):
        o, _ = run(q, k, v, w, u, scale=1.0)
        want, _ = loop(q, k, v, g=w, u=u.repeat_interleave(2, 0), scale=1.0)
        close(o, want, atol=1e-13 * float(want.abs().max()))
        for wrong, error in ((None, TypeError), (rand(4, K), ValueError), (rand(K), ValueError)):
            with pytest.raises(error, match=r"u (is|has shape)"):
                run(q, k, v, w, wrong)


def test_what_changes_nothing():
    """Sizes that fla's kernels have."""
    x, run = FAMILIES["simple_gla"].make(B), fla.chunk_simple_gla
    o, _ = run(*x.values())
    assert torch.equal(run(*x.values(), chunk_size=32, chunk_indices=None)[0], o)


@pytest.mark.parametrize("form", FORMS)
def test_what_models_compute(form):
    """Norms, gates and strengths inside: gated_delta_rule and kda."""
    x = inputs(2)
    q, k, v = x["q"], x["k"], x["v"]
    heads = 2 * H
    A_log, bias, raw = rand(heads, seed=20), rand(heads, seed=21), rand(B, T, heads, seed=22)
    options = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "A_log": A_log,
               "use_beta_sigmoid_in_kernel": True}  # fmt: skip
    run = getattr(fla, f"{form}_gated_delta_rule")
    o, _ = run(q, k, v, g=raw, beta=x["g"], dt_bias=bias, allow_neg_eigval=True, **options)
    gate = -A_log.exp() * F.softplus(raw + bias)
    want, _ = loop(norm(q), norm(k), v, g=gate, beta=2 * x["g"].sigmoid())
    close(o, want, atol=1e-12)

    run = getattr(fla, f"{form}_kda")
    raw, bias = rand(B, T, heads, K, seed=23), rand(heads * K, seed=24)
    shifted = raw + bias.view(heads, K)
    o, _ = run(q, k, v, g=raw, beta=x["g"], dt_bias=bias, **options)
    gate = -A_log[:, None].exp() * F.softplus(shifted)
    close(o, loop(norm(q), norm(k), v, g=gate, beta=x["g"].sigmoid())[0], atol=1e-12)
    for rate in (A_log, None):
        o, _ = run(q, k, v, g=raw, beta=x["g"], dt_bias=bias, lower_bound=-4.0,
                   **options | {"A_log": rate})  # fmt: skip
        gate = -4 * ((1.0 if rate is None else rate[:, None].exp()) * shifted).sigmoid()
        close(o, loop(norm(q), norm(k), v, g=gate, beta=x["g"].sigmoid())[0], atol=1e-12)
    with pytest.raises(ValueError, match="A_log is None"):
        run(q, k, v, x["gk"], x["beta"], use_gate_in_kernel=True)
    with pytest.raises(ValueError, match="expected use_beta_sigmoid_in_kernel"):
        run(q, k, v, x["gk"], x["beta"], allow_neg_eigval=True)


def test_both_gates_of_the_recurrent_form():
    x = make("kda")
    q, k, v, g, gk = (x[i] for i in ("q", "k", "v", "g", "gk"))
    run = fla.fused_recurrent_gated_delta_rule
    for gates, want in (
        ({"g": g, "gk": gk}, gk + g[..., None]), ({"gk": gk}, gk), ({}, torch.zeros_like(g)),
    ):  # fmt: skip
        o, _ = run(q, k, v, **gates)
        close(o, loop(q, k, v, g=want, beta=torch.ones_like(g))[0], atol=1e-12)


@pytest.mark.parametrize("name", ["linear_attn", "simple_gla", "retention", "delta_rule"])
def test_other_forms(name):
    """fused_chunk and parallel forms are the chunk form, the latter without states."""
    x, run = FAMILIES[name].make(B), FAMILIES[name].run
    o, s = run("chunk", x, output_final_state=True)
    if name != "delta_rule":
        again, same = run("fused_chunk", x, output_final_state=True)
        assert torch.equal(o, again) and torch.equal(s, same)
    if name != "linear_attn":
        again, nothing = getattr(fla, f"parallel_{name}")(*x.values())
        assert nothing is None and torch.equal(o, again)
        with pytest.raises(NotImplementedError, match=f"parallel_{name}: output_attentions is"):
            getattr(fla, f"parallel_{name}")(*x.values(), output_attentions=True)


def test_rwkv7_from_its_parts():
    x = inputs()
    o, s = fla.fused_mul_recurrent_rwkv7(x["q"], x["w"], x["k"], x["v"], x["a"], x["b"],
                                         output_final_state=True)  # fmt: skip
    want, state = loop(x["q"], x["k"], x["v"], a=-x["a"], b=x["a"] * x["b"], g=x["w"], scale=1.0)
    close(o, want, atol=1e-12)
    close(s, state, atol=1e-12)


def filtered(x, weight, bias, start, activation):
    """One sequence (T, D), those before it (D, W): y and the last W inputs."""
    w = weight.shape[-1]
    whole = torch.cat([start, x.T], -1)
    y = torch.stack([(whole[:, i + 1 : i + 1 + w] * weight).sum(-1) for i in range(len(x))])
    y = y if bias is None else y + bias
    return F.silu(y) if activation else y, whole[:, -w:]


@pytest.mark.parametrize("w", [2, 4, 14])
@pytest.mark.parametrize("cuts", [None, CUTS])
@pytest.mark.parametrize("given", [False, True])
def test_convolution(w, cuts, given):
    x = rand(1 if cuts else B, T, K, seed=1)
    weight, bias = rand(K, w, seed=2), rand(K, seed=3) if given else None
    n = 3 if cuts else B
    start = rand(n, K, w, seed=4) if given else None
    residual = rand(*x.shape, seed=5) if given else None
    activation = "swish" if given else None
    layer = fla.ShortConvolution(K, w, bias=given, activation=activation, dtype=torch.float64)
    layer.load_state_dict({"weight": weight[:, None]} | ({"bias": bias} if given else {}))
    more = {"cu_seqlens": torch.tensor(cuts)} if cuts else {}
    with pytest.raises(ValueError, match="activation is 'relu'"):
        fla.causal_conv1d(x, weight, activation="relu")
    y, s = layer(x, residual, cache=start, output_final_state=True, **more)
    again, nothing = fla.causal_conv1d(x, weight, bias, residual, start, activation=activation,
                                       **more)  # fmt: skip
    assert nothing is None and torch.equal(y, again) and s.shape == (n, K, w)
    for i in range(n):
        rows = slice(*cuts[i : i + 2]) if cuts else slice(None)
        before = torch.zeros(K, w).double() if start is None else start[i]
        part = x[0 if cuts else i, rows]
        want, state = filtered(part, weight, bias, before, activation) if len(part) else (
            part, before)  # fmt: skip
        want = want if residual is None else want + residual[0 if cuts else i, rows]
        close(y[0 if cuts else i, rows].detach(), want, atol=1e-13)
        close(s[i].detach(), state, atol=0.0)


def test_a_former_option_of_the_convolution():
    """Code for earlier versions of fla chooses its kernel by it."""
    with pytest.warns(DeprecationWarning, match="use_fast_conv1d is deprecated and ignored"):
        layer = fla.ShortConvolution(K, 4, use_fast_conv1d=True)
    assert layer.backend == "triton"


@pytest.mark.parametrize("shape", [(B, K), (B, 1, K), (1, B, K)])
def test_convolution_of_one_token(shape):
    """The cache is updated in place, by the layer too where nothing is recorded."""
    weight, bias, cache = rand(K, 3, seed=2), rand(K, seed=3), rand(B, K, 3, seed=4)
    x, residual = rand(*shape, seed=1), rand(*shape, seed=5)
    kept = cache.clone()
    y, same = fla.causal_conv1d_update(x, cache, residual, weight, bias, "silu")
    assert same is cache and y.shape == shape
    for i in range(B):
        row = x.reshape(B, K)[i : i + 1]
        want, state = filtered(row, weight, bias, kept[i], "silu")
        close(y.reshape(B, K)[i], want[0] + residual.reshape(B, K)[i], atol=1e-13)
        close(cache[i], state, atol=0.0)
    layer = fla.ShortConvolution(K, 3, dtype=torch.float64)
    if shape == (B, 1, K):
        cache = kept.clone()
        with torch.no_grad():
            _, same = layer(x, cache=cache, output_final_state=True)
        assert same is cache and not torch.equal(cache, kept)
