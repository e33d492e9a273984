"""Replacements for functions of Transformers, computed by linattn's operators.

Each function has the signature of the one that it replaces.  Models say in ``**kwargs`` how
sequences are packed in a row, which the library's own functions refuse (``cu_seqlens``,
``seq_idx``) or ignore (``cu_seq_lens_q``).  A function that returns NotImplemented leaves the call
to the library's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._states.state_arrays import State
from .._core.conversions import kept, writable
from .._core.seq_idx import Packing
from ..causal_conv1d.causal_conv1d_interface import ACTIVATIONS, shifted
from ..fla import chunk_gated_delta_rule, chunk_kda
from ..fla._lent import is_held_once
from ..fla._token import decode
from ..mamba_ssm.ops.triton.selective_state_update import update
from ..mamba_ssm.ops.triton.ssd_combined import scan
from ..operators import causal_conv1d, gated, gated_delta, gated_step
from ._packing import PACKING, sequences

# --- the gated delta rule, one gate per token (Qwen) or per key channel (Kimi) -----------------


def torch_chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, chunk_size: int = 64,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    bounds = sequences(key, kwargs)
    if bounds is NotImplemented:
        return NotImplemented
    rule = chunk_gated_delta_rule if g.ndim == 3 else chunk_kda
    o, state = rule(
        query, key, value, g, beta, None, initial_state, output_final_state,
        use_qk_l2norm_in_kernel, cu_seqlens=bounds,
    )  # fmt: skip
    return o.to(query.dtype), state


def torch_recurrent_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    packed = any(kwargs.get(name) is not None for name in PACKING)
    if packed or initial_state is None or key.shape[1] != 1:
        return torch_chunk_gated_delta_rule(
            query, key, value, g, beta, 64, initial_state, output_final_state,
            use_qk_l2norm_in_kernel, **kwargs,
        )  # fmt: skip
    # The model copies the state after the token to the cache's tensor, which this is.
    in_place = output_final_state and initial_state.dtype is torch.float32
    o, state = decode(
        gated_delta, (query, key, value, g, beta), initial_state,
        groups=value.shape[2] // key.shape[2], v_first=False,
        in_place=in_place and writable(initial_state, query, key, value, g, beta),
        options={
            "scale": key.shape[-1] ** -0.5,
            "feature_map": "l2norm" if use_qk_l2norm_in_kernel else "identity",
        },
    )  # fmt: skip
    return o.to(query.dtype), state if output_final_state else None


def recurrent_kimi_delta_attention(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor,
    initial_state: Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Any:  # fmt: skip
    return torch_recurrent_gated_delta_rule(
        query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel,
        **kwargs,
    )  # fmt: skip


# --- Mamba-2: queries C, keys B, values x, strengths dt, gates dt A; states have values first


def mamba2_chunk_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
    D: Tensor | None = None, dt_bias: Tensor | None = None, initial_states: Tensor | None = None,
    dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    bounds = sequences(hidden_states, kwargs)
    if bounds is NotImplemented or (bounds is not None and initial_states is not None):
        return NotImplemented
    packed = None
    if bounds is not None:  # a single row
        packed = Packing(bounds, bounds.new_zeros(1), bounds.new_tensor([len(bounds) - 2]))
    if initial_states is not None:
        operands = hidden_states, dt, dt_bias, A, B, C
        (initial_states,) = kept([initial_states], *operands)
    # The result is float32: of float16, whose range is small, nothing is rounded before.
    x = hidden_states if hidden_states.dtype == torch.bfloat16 else hidden_states.float()
    o, states = scan(
        "mamba2_chunk_scan", x, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit, packed,
        initial_states,
    )  # fmt: skip
    o = o.float().contiguous()
    if not return_final_states:
        return o
    return o, states if packed is None else states[-1:]


def selective_state_update(
    state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False,
    z: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """One token of Mamba or, with an axis of heads, of Mamba-2."""
    given = {"x": hidden_states, "dt": dt, "A": A, "B": B, "C": C, "D": D, "dt_bias": dt_bias}
    return update(state, given | {"z": z}, dt_softplus)


def mamba2_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor,
    D: Tensor, chunk_size: int, initial_states: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False,
    activation: str = "silu", rmsnorm_weight: Tensor | None = None, rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None, outproj_bias: Tensor | None = None,
    headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True, **kwargs: Any,
) -> None:  # fmt: skip
    """Return None: the model then calls its convolution and its scan."""


# --- the convolution, channels first ----------------------------------------------------


def causal_conv1d_fn(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None,
    activation: str | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    x = hidden_states.transpose(1, 2)
    bounds = sequences(x, kwargs)
    if bounds is NotImplemented or activation not in ACTIVATIONS:
        return NotImplemented
    o = causal_conv1d(
        x.to(weight.dtype), weight, bias, activation=ACTIVATIONS[activation], cu_seqlens=bounds
    )
    return o.to(hidden_states.dtype).transpose(1, 2)


def causal_conv1d_update(
    hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None,
    activation: str | None = None,
) -> Any:  # fmt: skip
    if activation not in ACTIVATIONS or conv_state.shape[-1] < weight.shape[-1] - 1:
        return NotImplemented
    return shifted(hidden_states, conv_state, weight, bias, ACTIVATIONS[activation])


# --- MiniMax, whose attention is part of a method ------------------------------------------


def lightning_attention(
    self: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None, cache: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    bounds = sequences(hidden_states, kwargs)
    s, alone = _lightning_state(cache, self.layer_idx)
    if bounds is NotImplemented or (bounds is not None and s is not None):
        raise ValueError(
            "MiniMaxLightningAttention: packed sequences are given with a cache or in several "
            "rows; expected one row and no cache"
        )
    x = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        x = (x * attention_mask[:, :, None]).to(x.dtype)
    x = x.unflatten(-1, (self.num_attention_heads, 3 * self.head_dim)).transpose(1, 2)
    q, k, v = x.split(self.head_dim, -1)
    decay = -self.slope_rate[..., 0]
    if isinstance(s, Tensor) and bounds is None and q.shape[-2] == 1:
        q, k, v = (x.squeeze(-2) for x in (q, k, v))
        in_place = alone and s.dtype is torch.float32 and writable(s, decay, q, k, v)
        o, (final, *_) = gated_step(q, k, v, decay[:, 0], State(s), in_place=in_place)
        o = o.unsqueeze(-2)
    else:
        o, state = gated(
            q, k, v, decay.expand(-1, q.shape[-2]), cu_seqlens=bounds,
            initial_state=None if s is None else State(s), return_state=True,
        )  # fmt: skip
        final = state.s if bounds is None else state.s[:, :, -1]
    o = self.norm(o.transpose(1, 2).flatten(2))
    o = self.out_proj(F.sigmoid(self.output_gate(hidden_states)) * o)
    if cache is not None:
        cache.set_linear_cache(self.layer_idx, final)
    return o, final


def _lightning_state(cache: Any, layer_idx: int) -> tuple[Tensor | None, bool]:
    """The state of a layer, and whether the cache alone has it, so that a step may write to it."""
    if cache is None or len(cache.linear_cache) <= layer_idx:
        return None, False
    alone = is_held_once(cache.linear_cache, layer_idx)
    return cache.get_linear_cache(layer_idx), alone
