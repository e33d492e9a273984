"""Replacements for loops over tokens: the scans of Mamba and of RecurrentGemma.

Each function has the signature of the one that it replaces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._state import State
from ..operators import linear_scan, selective_scan, selective_scan_step
from ._functions import writable
from ._packing import SCANNED, sequences

# --- Mamba: channels before tokens, which are views here ---------------------------------------


def mamba_selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    return_last_state: bool = False, use_mambapy: bool = False, use_associative_scan: bool = False,
    **kwargs: Any,
) -> Any:  # fmt: skip
    x = hidden_states.mT
    bounds = sequences(x, kwargs)
    if bounds is NotImplemented:
        return NotImplemented
    if bounds is None and not torch.compiler.is_compiling():  # then layers tell it nothing
        bounds = SCANNED.bounds
    result: Any = selective_scan(
        x, dt.mT, A, B.mT, C.mT, D=D, z=None if z is None else z.mT, dt_bias=delta_bias,
        softplus=delta_softplus, cu_seqlens=bounds, return_state=return_last_state,
    )  # fmt: skip
    if not return_last_state:
        return result.mT
    o, state = result
    return o.mT, state.s if bounds is None else state.s[:, -1]


def mamba_selective_state_update(
    state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False,
    z: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    options: dict[str, Any] = {"D": D, "z": z, "dt_bias": dt_bias, "softplus": dt_softplus}
    operands = hidden_states, dt, A, B, C
    if state.dtype is torch.float32 and writable(state, *operands, D, dt_bias, z):
        o, _ = selective_scan_step(*operands, State(state), **options, in_place=True)
        return o
    # Gradients need the state from before.
    o, after = selective_scan_step(*operands, State(state.clone()), **options)
    state.copy_(after.s)
    return o


# --- RecurrentGemma's RG-LRU -------------------------------------------------------------------


def rglru_scan(
    self: Any, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor,
    recurrent_states: Tensor | None, acc_dtype: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    if acc_dtype is not torch.float32 or hidden_states.dtype is torch.float64:
        return NotImplemented
    start = None if recurrent_states is None else State(recurrent_states)
    with torch.autocast("cpu", enabled=False):  # decays near 1 need 32 bits
        o, state = linear_scan(
            recurrent_gate * ~reset, hidden_states, initial_state=start, return_state=True
        )
    return o.to(hidden_states.dtype), state.s
