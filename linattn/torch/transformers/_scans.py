"""Replacements for loops over tokens: scans of Mamba and RecurrentGemma, RWKV-4 and xLSTM.

Each function has the signature of the one that it replaces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import State
from .._core.conversions import kept, promotion, work_dtype, writable
from ..operators import linear_scan, mlstm, mlstm_step, selective_scan, wkv
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


# --- RWKV-4 ------------------------------------------------------------------------------------


def rwkv_linear_attention_cpu(
    time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, state: Any = None,
    return_state: bool = False,
) -> Any:  # fmt: skip
    if state is not None:
        state = kept(state, time_decay, time_first, key, value)
    start = None if state is None else State(*state)
    o, after = wkv(key, value, time_decay.exp(), time_first, initial_state=start, return_state=True)
    return o, list(after) if return_state or state is not None else None


# --- xLSTM, whose backend binds the library's functions when it is built -----------------------


def xlstm_backend(
    self: Any, query: Tensor, key: Tensor, value: Tensor, igate: Tensor, fgate: Tensor,
    c_initial: Tensor | None = None, n_initial: Tensor | None = None,
    m_initial: Tensor | None = None, return_last_states: bool | None = None,
    mode: str | None = None,
) -> Any:  # fmt: skip
    mode = self.config.mode if mode is None else mode
    training = "train" in mode
    if training and return_last_states is None:
        return_last_states = self.config.return_last_states
    if self.config.mode == "train_with_padding" and return_last_states:
        return NotImplemented  # an error of the library's
    if not training and "inference" not in mode:
        return NotImplemented
    start = None
    if c_initial is not None and n_initial is not None and m_initial is not None:
        start = State(c_initial, n_initial, m_initial[..., 0])
        tokens = query, key, value, igate, fgate
        dtype = work_dtype(promotion([x.dtype for x in tokens]))
        if (
            not training and query.shape[2] == 1 and all(x.dtype is dtype for x in start)
            and writable(*tokens, *start)
        ):  # fmt: skip
            # The model copies the states after the token to the cache's tensors, which these are.
            q, k, v, i, f = (x[:, :, 0] for x in tokens)
            o, _ = mlstm_step(q, k, v, i, f, start, eps=self.config.eps, in_place=True)
            return o.unsqueeze(2), (c_initial, n_initial, m_initial)
        start = State(*kept(start, *tokens))
    o, (c, n, m) = mlstm(
        query, key, value, igate, fgate, eps=self.config.eps, initial_state=start,
        return_state=True,
    )  # fmt: skip
    return (o, (c, n, m[..., None])) if return_last_states or not training else o
