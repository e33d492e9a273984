"""Replacements for layers that decode a token: one call between their projections.

A layer whose cache has a state computes one token per sequence with a fused step, which writes to
the cache's own tensors.  Whatever else it is asked for goes to the library's method: prompts,
gradients, masks, several tokens, a cache that records the past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..._fused import FusedState
from .._library import is_direct
from ..operators import fused_gated_delta_step, fused_gated_step

Projected = tuple[tuple[Tensor, ...], dict[str, Any]]


def qwen3_next(
    self: Any, hidden_states: Tensor, cache_params: Any = None,
    attention_mask: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    return _decoded(self, hidden_states, cache_params, attention_mask, _of_qwen3_next)


def qwen3_5(
    self: Any, hidden_states: Tensor, cache_params: Any = None,
    attention_mask: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    return _decoded(self, hidden_states, cache_params, attention_mask, _of_qwen3_5)


def kimi_linear(
    self: Any, hidden_states: Tensor, cache_params: Any = None,
    attention_mask: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    return _decoded(self, hidden_states, cache_params, attention_mask, _of_kimi)


def mamba_2(
    self: Any, hidden_states: Tensor, cache_params: Any = None,
    attention_mask: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Mamba-2's time steps have no limits where its library decodes a token."""
    return _decoded(self, hidden_states, cache_params, attention_mask, _of_mamba_2)


# --- projections: the operands of the fused step, and its options -------------------------------


def _of_qwen3_next(self: Any, x: Tensor) -> Projected:
    mixed = self.in_proj_qkvz(x), self.in_proj_ba(x)
    q, k, v, z, b, a = self.fix_query_key_value_ordering(*mixed)
    qkv = torch.cat([y.flatten(2) for y in (q, k, v)], -1)
    return (qkv[:, 0], a[:, 0], b[:, 0]), _of_qwen(self, z[:, 0].flatten(1))


def _of_qwen3_5(self: Any, x: Tensor) -> Projected:
    qkv, z, b, a = (
        f(x)[:, 0] for f in (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
    )
    return (qkv, a, b), _of_qwen(self, z)


def _of_qwen(self: Any, z: Tensor) -> dict[str, Any]:
    return {
        "A_log": self.A_log, "dt_bias": self.dt_bias, "z": z, "norm_weight": self.norm.weight,
        "norm_eps": self.norm.variance_epsilon, "scale": self.head_k_dim**-0.5,
    }  # fmt: skip


def _of_kimi(self: Any, x: Tensor) -> Projected:
    x, gate, heads = x[:, 0], self.forget_gate, (self.num_heads, self.head_dim)
    qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
    a = gate.f_b_proj(gate.f_a_proj(x)).unflatten(-1, heads)
    return (qkv, a, self.b_proj(x)), {
        "A_log": gate.A_log.flatten(), "dt_bias": gate.dt_bias.view(heads),
        "z": self.g_b_proj(self.g_a_proj(x)), "norm_weight": self.o_norm.weight,
        "norm_eps": self.o_norm.variance_epsilon, "norm_activation": "sigmoid",
        "scale": self.head_dim**-0.5,
    }  # fmt: skip


def _of_mamba_2(self: Any, x: Tensor) -> Projected:
    width, norm = self.intermediate_size, self.norm
    z, qkv, dt = self.in_proj(x)[:, 0].split((width, self.conv_dim, self.num_heads), -1)
    return (qkv, dt), {
        "A_log": self.A_log, "dt_bias": self.dt_bias, "D": self.D, "z": z,
        "norm_weight": norm.weight, "norm_eps": norm.variance_epsilon,
        "norm_groups": width // norm.group_size,
    }  # fmt: skip


# --- the step -----------------------------------------------------------------------------------


def _decoded(
    self: Any, x: Tensor, cache: Any, mask: Tensor | None,
    project: Callable[[Any, Tensor], Projected],
) -> Any:  # fmt: skip
    """The layer's output of one token per sequence; NotImplemented for other calls."""
    if cache is None or mask is not None or x.shape[1] != 1 or not _is_plain(self):
        return NotImplemented
    conv = cache.get_conv_state(self.layer_idx, state_idx=0)
    s = cache.get_recurrent_state(self.layer_idx, state_idx=0)
    if conv is None or s is None or cache.is_recording_past(self.layer_idx):
        return NotImplemented
    weight, bias = self.conv1d.weight[:, 0], self.conv1d.bias
    if s.dtype is not torch.float32 or x.dtype is torch.float64:
        return NotImplemented
    if torch.is_grad_enabled() or not is_direct((x, conv, s, weight)):
        return NotImplemented
    operands, options = project(self, x)
    inputs = conv.float()  # the cache's own tensor, unless it has 16 bits
    is_mamba = len(operands) == 2  # whose states have the values first
    step: Any = fused_gated_step if is_mamba else fused_gated_delta_step
    state = FusedState(inputs, s.mT if is_mamba else s)
    o, _ = step(*operands, state, weight=weight, bias=bias, in_place=True, **options)
    if inputs is not conv:
        conv.copy_(inputs)
    output = self.out_proj if hasattr(self, "out_proj") else self.o_proj
    return output(o.to(x.dtype)[:, None])


def _is_plain(self: Any) -> bool:
    """Whether its convolution and norm are the library's, and nobody watches them."""
    norm = getattr(self, "norm", None) or self.o_norm
    return (
        self.activation == "silu"
        and type(self.conv1d) is nn.Conv1d
        and type(norm).__name__.endswith("RMSNormGated")
        and not any(
            hasattr(x, "_hf_hook") or x._forward_hooks or x._forward_pre_hooks
            for x in (self.conv1d, norm)
        )
    )
