"""The log decays of gates, as functions of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from .delta import log_decays


def fused_gdn_gate(
    g: Tensor, A_log: Tensor, dt_bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """-e^A_log softplus(g + dt_bias) of g [..., HV]; A_log and dt_bias are [HV]."""
    return log_decays("fused_gdn_gate", g, A_log, dt_bias).to(output_dtype)


def fused_kda_gate(
    g: Tensor, A_log: Tensor | None = None, dt_bias: Tensor | None = None,
    lower_bound: float | None = None, output_dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """-e^A_log softplus(g + dt_bias) of g [..., H, K]; A_log has H numbers and dt_bias H K.

    With ``lower_bound`` it is lower_bound sigmoid(e^A_log (g + dt_bias)), where A_log may be None.
    """
    A_log = None if A_log is None else A_log.reshape(-1, 1)
    dt_bias = None if dt_bias is None else dt_bias.reshape(g.shape[-2:])
    return log_decays("fused_kda_gate", g, A_log, dt_bias, lower_bound).to(output_dtype)
