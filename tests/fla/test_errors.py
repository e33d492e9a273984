"""What linattn.torch.fla refuses, and the errors that say so."""

import pytest
import torch
from bounds import close
from fla_cases import CUTS, B, K, T, V, loop, make, rand, tokens

from linattn.torch import fla


def test_keywords_that_cannot_be_honoured():
    x = make("gated_delta_rule")
    q, k, v, g, beta = (x[i] for i in ("q", "k", "v", "g", "beta"))
    with pytest.raises(NotImplementedError, match="cp_context is"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, cp_context=object())
    with pytest.raises(TypeError, match="unexpected keyword nosuch"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, nosuch=1)
    with pytest.raises(TypeError, match="head_first"):
        fla.chunk_simple_gla(q, k, v, g, head_first=True)
    with pytest.raises(ValueError, match=r"gv has shape \(2, 11, 3, 5\); expected \(2, 11, 6, 5"):
        fla.fused_recurrent_gla(q, k, v, gv=v[:, :, :3])
    with pytest.raises(NotImplementedError, match="return_intermediate_states is True"):
        fla.chunk_kda(q, k, v, x["gk"], beta, return_intermediate_states=True)
    with pytest.raises(ValueError, match="lower_bound is None"):
        fla.chunk_kda(q, k, v, x["gk"], beta, use_gate_in_kernel=True, safe_gate=True,
                      A_log=torch.zeros(6))  # fmt: skip
    same = fla.chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=32, chunk_indices=None)[0]
    assert torch.equal(same, fla.chunk_gated_delta_rule(q, k, v, g, beta)[0])


def test_gates_of_another_rank():
    """A gate a token is not taken for one a channel, nor the other way around."""
    x = make("gated_delta_rule")
    q, k, v, g, beta = (x[i] for i in ("q", "k", "v", "g", "beta"))
    gk = g[..., None].expand(*g.shape, K)
    one = q, k, v[:, :, :3]  # as many heads of values as of keys
    g3, gk3 = g[:, :, :3], gk[:, :, :3]
    for name, args, argument in [
        ("chunk_simple_gla", (q, k, v, gk), "g"),
        ("fused_recurrent_simple_gla", (q, k, v, gk), "g"),
        ("chunk_gla", (*one, g3), "g"),
        ("fused_recurrent_gla", (*one, g3), "gk"),
        ("chunk_gated_delta_rule", (q, k, v, gk, beta), "g"),
        ("fused_recurrent_gated_delta_rule", (q, k, v, gk), "g"),
        ("fused_recurrent_gated_delta_rule", (q, k, v, None, g), "gk"),
        ("fused_recurrent_gated_delta_rule", (q, k, v, gk, gk), "g"),
        ("chunk_kda", (q, k, v, g, beta), "g"),
        ("fused_recurrent_kda", (q, k, v, g, beta), "g"),
        ("chunk_rwkv6", (*one, g3, torch.ones(3, K)), "w"),
        ("chunk_dplr_delta_rule", (*one, gk3, gk3, g3), "gk"),
        ("chunk_dplr_delta_rule", (*one, g3, gk3, gk3), "a"),
    ]:
        with pytest.raises(ValueError, match=f"{name}: {argument} has shape"):
            getattr(fla, name)(*args)


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


def test_first_states_of_another_shape():
    """They are not broadcast: heads or sequences would share what is one's."""
    q, k, v = tokens(2)
    g = -rand(B, T, 6, seed=5).abs()
    good = rand(B, 6, K, V, seed=7)
    fla.chunk_simple_gla(q, k, v, g, initial_state=good)
    fla.chunk_simple_gla(q, k, v, g, initial_state=good.mT, state_v_first=True)
    for wrong in (good[:1], good[:, :3], good[:, :1], good[0, 0], good.mT):
        with pytest.raises(ValueError, match=r"initial_state has shape .*, \[N, HV, K, V\]"):
            fla.chunk_simple_gla(q, k, v, g, initial_state=wrong)
    with pytest.raises(ValueError, match=r"g_gamma has shape \(11, 6\); expected \(6,\)"):
        fla.chunk_simple_gla(q, k, v, g_gamma=g[0])


def test_what_is_missing():
    x = make("gated_delta_rule")
    q, k, v, g, beta = (x[i] for i in ("q", "k", "v", "g", "beta"))
    for name, args, argument in [
        ("chunk_delta_rule", (q, k, v, None), "beta"),
        ("chunk_gated_delta_rule", (q, k, v, None, beta), "g"),
        ("chunk_gated_delta_rule", (q, k, v, g, None), "beta"),
        ("chunk_kda", (q, k, v, None, beta), "g"),
        ("chunk_gla", (q, k, v, None), "g"),
    ]:
        with pytest.raises(TypeError, match=f"{name}: {argument} is None; expected a tensor"):
            getattr(fla, name)(*args)
    with pytest.raises(TypeError, match="beta is None; expected a tensor"):
        fla.chunk_gated_delta_rule(q, k, v, g, None, use_beta_sigmoid_in_kernel=True)


def test_cu_seqlens_as_a_list():
    x = make("gated_delta_rule", batch=1)
    args = [x[i] for i in ("q", "k", "v")]
    for run in (fla.fused_recurrent_simple_gla, fla.fused_recurrent_linear_attn):
        args[2] = args[2] if run is fla.fused_recurrent_simple_gla else args[2][:, :, :3]
        given = {"output_final_state": True, "reverse": True}
        for a, b in zip(
            run(*args, cu_seqlens=list(CUTS), **given),
            run(*args, cu_seqlens=torch.tensor(CUTS), **given), strict=True,
        ):  # fmt: skip
            assert torch.equal(a, b)


def test_wrong_shapes():
    x = make("gated_delta_rule")
    q, k, v, g, beta = (x[i] for i in ("q", "k", "v", "g", "beta"))
    run = fla.chunk_gated_delta_rule
    with pytest.raises(ValueError, match=r"q has shape \(11, 3, 4\); expected \[B, T, H, K\]"):
        run(q[0], k, v, g, beta)
    with pytest.raises(ValueError, match=r"v has shape .* HV a multiple of 3"):
        run(q, k, v[:, :, :4], g[:, :, :4], beta[:, :, :4])
    with pytest.raises(ValueError, match=r"g has shape \(2, 11, 3\); expected \(2, 11, 6\), \["):
        run(q, k, v, g[:, :, :3], beta)
    with pytest.raises(ValueError, match="q has a batch of 2; expected 1 with cu_seqlens"):
        run(q, k, v, g, beta, cu_seqlens=torch.tensor(CUTS))
    with pytest.raises(ValueError, match="a state for each sequence of cu_seqlens"):
        run(q[:1], k[:1], v[:1], g[:1], beta[:1], cu_seqlens=torch.tensor(CUTS),
            initial_state=torch.zeros(1, 6, K, V))  # fmt: skip
    with pytest.raises(TypeError, match="initial_state is a tuple of 2; expected a tensor"):
        run(q, k, v, g, beta, initial_state=(torch.zeros(2, 6, K, V), None))
    with pytest.raises(TypeError, match="initial_state is a tuple of 1; expected a pair"):
        fla.chunk_linear_attn(q, k, v[:, :, :3], initial_state=(torch.zeros(2, 3, K, V),))
    with pytest.raises(ValueError, match="activation is 'relu'"):
        fla.causal_conv1d(torch.ones(1, 3, 2), torch.ones(2, 2), activation="relu")
