"""Replacements for layers that decode a token: one call between their projections.

A layer whose cache has a state computes one token per sequence with a fused step, which writes to
the cache's own tensors.  Whatever else it is asked for goes to the library's method: prompts,
gradients, masks, several tokens, a cache that records the past.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..._call.fused import FusedState
from .._core.direct import is_plain
from ..operators import fused_gated_delta_step, fused_gated_step
from ._sources import digest

Projected = tuple[tuple[Tensor, ...], dict[str, Any]]

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
        "norm_eps": self.norm.variance_epsilon, "norm_activation": self.norm.activation,
        "scale": self.head_k_dim**-0.5,
    }  # fmt: skip


def _of_kimi(self: Any, x: Tensor) -> Projected:
    gate, heads = self.forget_gate, (self.num_heads, self.head_dim)
    qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
    a = gate.f_b_proj(gate.f_a_proj(x)).unflatten(-1, heads)
    return (qkv[:, 0], a[:, 0], self.b_proj(x)[:, 0]), {
        "A_log": gate.A_log.flatten(), "dt_bias": gate.dt_bias.view(heads),
        "z": self.g_b_proj(self.g_a_proj(x))[:, 0], "norm_weight": self.o_norm.weight,
        "norm_eps": self.o_norm.variance_epsilon, "norm_activation": self.o_norm.activation,
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


# --- the layers ---------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A layer of one or more models, as linattn knows it."""

    project: Callable[[Any, Tensor], Projected]
    classes: tuple[str, ...]
    sources: tuple[str, ...]  #: digests of its forward, by version
    bypassed: dict[str, str]  #: the modules that the fused step computes, and their digests


_QWEN_NORM = {"norm": "5a4bd64da7fd08bd737b2e023db367adc1a60de12c0ec6aba8298741bfb415cf"}
LAYERS = (
    Layer(
        _of_qwen3_next,
        ("Qwen3NextGatedDeltaNet",),
        (
            "177c5d3df989a7b42f3b12a41bedc225ebf43ae052d5e2ac8c0a3507a61a3db4",
            "d97f22719fb58479a36f882539659e5c98163c35e1837900d620f046745093f5",
        ),
        _QWEN_NORM,
    ),
    Layer(
        _of_qwen3_5,
        ("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet", "LaraMiniGatedDeltaNet"),
        (
            "8f31ae7d35daf534a763d1ca92875c5c412e06a4488885e5126907a804b52878",
            "08cf65a63ca582a2d2673346f42cccba2aac0ae606d1b6546c377a8a075817c5",
        ),
        _QWEN_NORM,
    ),
    Layer(
        _of_kimi,
        ("KimiLinearDeltaAttention",),
        (
            "e696ac62c104e9c6b9eec0dc371dc5fbadd62bfbd893eacd4b406206666a89dc",
            "18a6676bcbf5260aa3ba564e8cfcd9f14c31ff3b1b41563c2ea3f615e533f196",
        ),
        {
            "forget_gate": "f855c68f8a68417b8060836564dc5af070a4c936ed668558f1f6085527644335",
            "o_norm": "536ae00bbdc7d8e7670b319fb653b19b7d4bc4f65b1155ba6f80546d71b10658",
        },
    ),
    Layer(  # whose time steps have no limits where the library decodes a token
        _of_mamba_2,
        (
            "BambaMixer",
            "GraniteMoeHybridMambaLayer",
            "Mamba2Mixer",
            "NemotronHMamba2Mixer",
            "Zamba2MambaMixer",
        ),
        (
            "691f3ca98636d47322a3febd3c3036a9f928f257a66fdc1008a81274f1f696ff",
            "c215be341ddf22ff2b42b656a345c782b439f94a10eb0a4bfc461f6c57982c99",
        ),
        {"norm": "2ed3aa30edfb36e256adf22eee766f8828e576397eba4b5568e8bb6b63e860e1"},
    ),
)


# --- the step -----------------------------------------------------------------------------------


def decoding(layer: Layer) -> Callable[..., Any]:
    """The forward of a layer that decodes a token by one fused step."""

    def forward(
        self: Any, hidden_states: Tensor, cache: Any = None,
        attention_mask: Tensor | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        return _decoded(self, hidden_states, cache, attention_mask, layer)

    return forward


def _decoded(self: Any, x: Tensor, cache: Any, mask: Tensor | None, layer: Layer) -> Any:
    """The layer's output of one token per sequence; NotImplemented for other calls."""
    if cache is None or mask is not None or x.shape[1] != 1 or not _is_plain(self, layer.bypassed):
        return NotImplemented
    conv = cache.get_conv_state(self.layer_idx, state_idx=0)
    s = cache.get_recurrent_state(self.layer_idx, state_idx=0)
    if conv is None or s is None or cache.is_recording_past(self.layer_idx):
        return NotImplemented
    weight, bias = self.conv1d.weight[:, 0], self.conv1d.bias
    if s.dtype is not torch.float32 or x.dtype is torch.float64:
        return NotImplemented
    if torch.is_grad_enabled() or not is_plain((x, conv, s, weight)):
        return NotImplemented
    operands, options = layer.project(self, x)
    inputs = conv.float()  # the cache's own tensor, unless it has 16 bits
    is_mamba = len(operands) == 2  # whose states have the values first
    step: Any = fused_gated_step if is_mamba else fused_gated_delta_step
    state = FusedState(inputs, s.mT if is_mamba else s)
    o, _ = step(*operands, state, weight=weight, bias=bias, in_place=True, **options)
    if inputs is not conv:
        conv.copy_(inputs)
    output = self.out_proj if hasattr(self, "out_proj") else self.o_proj
    return output(o.to(x.dtype)[:, None])


def _is_plain(self: Any, bypassed: dict[str, str]) -> bool:
    """Whether its convolution, norm and gate are the library's, and nobody watches them."""
    modules = {name: getattr(self, name) for name in bypassed}
    return (
        self.activation == "silu"
        and type(self.conv1d) is nn.Conv1d
        and not _has_any_global_hook()
        and not any(map(_is_watched, (self.conv1d, *modules.values())))
        and all(_digest(type(x).forward) == bypassed[name] for name, x in modules.items())
        and all(getattr(x, "activation", "silu") in _GATES for x in modules.values())
    )


#: The activations of a norm's gate that the fused step has.
_GATES = ("silu", "sigmoid")


def _is_watched(module: nn.Module) -> bool:
    """Whether the module has hooks, or a forward of its own."""
    return bool("forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks)


@functools.lru_cache(maxsize=64)
def _digest(function: Callable[..., Any]) -> str:
    """The digest; empty for a function without a source."""
    try:
        return digest(function)
    except (OSError, TypeError):
        return ""
