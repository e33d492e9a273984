"""Preconditioned delta rules in linattn.torch.fla."""

import fla_package
import fla_twins as twins
import pytest
import torch
from fla_cases import B, H, K, T, V, norm, rand
from fla_families import FAMILIES, FORMS
from fla_twins import near

from linattn.torch import fla

EACH = pytest.mark.parametrize("name", ["gated_delta_rule", "kda"])


def make(name):
    return FAMILIES[f"precond_{name}"].make(B)


def call(name, tokens, form="chunk", start=(None, None), **options):
    return FAMILIES[f"precond_{name}"].run(form, tokens, start, **options)


@EACH
def test_options(name):
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


def test_gates():
    """What the recurrent form takes besides: gates of both kinds, or none."""
    x = make("gated_delta_rule")
    gk = make("kda")["g"]
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
        o, _ = call("kda", x | {"g": raw}, form, use_gate_in_kernel=True, A_log=A_log)
        near(o, want, 1e-12)


def test_errors():
    x = make("gated_delta_rule")
    for key in ("g", "g_atk", "beta_atk"):
        error = f"chunk_precond_gated_delta_rule: {key} has shape"
        with pytest.raises(ValueError, match=error):
            call("gated_delta_rule", x | {key: x[key][..., :1]})
    with pytest.raises(ValueError, match=r"initial_A_state has shape .*\[N, H, K\]"):
        call("gated_delta_rule", x, start=(None, torch.zeros(B, 2 * H, K)))
    with pytest.raises(ValueError, match="log_atk_scale has shape"):
        call("gated_delta_rule", x, log_atk_scale=torch.zeros(2 * H))
    with pytest.raises(TypeError, match="fused_recurrent_precond_kda: g_atk is None"):
        call("kda", make("kda") | {"g_atk": None}, "fused_recurrent")


@fla_package.NEEDED
@EACH
def test_against_fla(name):
    x = {key: y[:, :, :H].float() for key, y in make(name).items()}
    family = f"precond_{name}"
    naive = getattr(fla_package.naive(family), f"naive_recurrent_{family}")
    want, s, a = naive(**x, output_final_state=True)
    o, state = call(name, x, output_final_state=True)
    near(o, want, 1e-5)
    for y, z in zip(state, (s, a), strict=True):
        near(y, z, 1e-5)
