"""Decays of value channels in linattn.torch.fla: gv."""

import pytest
import torch
from fla_cases import B, H, K, T, V, rand
from fla_twins import by_value, near, operands

from linattn.torch import fla


def make(batch=B):
    x = operands(2 * H, batch)
    return {key: x[key] for key in ("q", "k", "v", "g", "gk", "beta")} | {
        "gv": -rand(batch, T, 2 * H, V, seed=11).abs()
    }


def test_what_the_gate_computes():
    """A raw gate, and a strength of each value channel."""
    x = make()
    x.pop("gk")
    A_log, bias = rand(2 * H, seed=12), rand(2 * H, seed=13)
    x["beta"] = rand(B, T, 2 * H, V, seed=14).sigmoid()
    o, _ = fla.fused_recurrent_gated_delta_rule(**x, use_gate_in_kernel=True, A_log=A_log,
                                                dt_bias=bias)  # fmt: skip
    g = -A_log.exp() * torch.nn.functional.softplus(x["g"] + bias)
    near(o, by_value(**x | {"g": g}, start=torch.zeros(B, 2 * H, K, V))[0], 1e-12)


def test_errors():
    x = make()
    q, k, v, gv = (x[key] for key in ("q", "k", "v", "gv"))
    with pytest.raises(ValueError, match=r"fused_recurrent_gla: gv has shape .*HV, V"):
        fla.fused_recurrent_gla(q, k, v, gv=gv[..., 0])
    with pytest.raises(ValueError, match=r"initial_state has shape .*\[N, HV, K, V\]"):
        fla.fused_recurrent_gla(q, k, v, gv=gv, initial_state=torch.zeros(B, 2 * H, V, K))
