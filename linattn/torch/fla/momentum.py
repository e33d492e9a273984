"""The delta rule with momentum: errors drive a momentum, which drives the state."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._states.state_arrays import State
from ..feature_maps import L2Norm
from ..operators import momentum_delta
from ._keywords import Given
from ._layout import (
    check_shape,
    check_tokens,
    count_sequences,
    scale_of,
    state_in,
    state_out,
)
from ._parameters import Result
from ._rules import family

_NORM = L2Norm()
_GATES = ("log_alpha", "log_mu", "beta", "eta")
_PARAMETERS = (
    "q k v log_alpha log_mu p=None beta=None eta=None scale initial_state output_final_state "
    "cu_seqlens use_qk_l2norm_in_kernel=True use_p_times_alpha=True"
)


@family(
    "momentum_delta",
    {
        "chunk_momentum_delta_rule": f"{_PARAMETERS} chunk_size=64",
        "fused_recurrent_momentum_delta_rule": _PARAMETERS,
    },
    types={
        "v": "Tensor, [B, T, H, V]",
        "beta": "Tensor, [B, T, H]",
        "initial_state": (
            "Tensor, [2, N, H, K, V], optional",
            "The state before the first token, and its momentum.",
        ),
        "use_qk_l2norm_in_kernel": ("bool", "Divide queries, keys and p by their norms first."),
    },
)
def _momentum_delta_rule(name: str, given: Given) -> Result:
    """The delta rule whose errors drive a momentum, which drives the state.

    Returns
    -------
    o : Tensor, [B, T, H, V]
    final_state : Tensor, [2, N, H, K, V], or None
        The state and its momentum, float32 or float64; None without ``output_final_state``.
    """
    check_tokens(name, given, grouped=False)
    k, cu_seqlens = given["k"], given["cu_seqlens"]
    if given["p"] is None:
        given["p"] = k
    check_shape(name, "p", given["p"], k.shape, "[B, T, H, K]")
    for x in ("beta", "eta"):
        if given[x] is None:
            given[x] = k.new_ones(()).expand(k.shape[:3])
    for x in _GATES:
        check_shape(name, x, given[x], k.shape[:3], "[B, T, H]")
    start = _start(name, given)
    if given["use_qk_l2norm_in_kernel"]:
        for x in "qkp":
            given[x] = _NORM(given[x])
    if given["use_p_times_alpha"]:
        p = given["p"]
        given["p"] = (p * given["log_alpha"].exp().unsqueeze(-1)).to(p.dtype)
    tokens = (given[x].transpose(1, 2) for x in ("q", "k", "v", "p", *_GATES))
    o, end = momentum_delta(
        *tokens, scale=scale_of(given), cu_seqlens=cu_seqlens, initial_state=start,
        return_state=True,
    )  # fmt: skip
    o = o.transpose(1, 2).to(given["dtype"]).contiguous()
    if not given["output_final_state"]:
        return o, None
    return o, torch.stack([state_out(x, 1, cu_seqlens) for x in end[:2]])


def _start(name: str, given: Given) -> State | None:
    """The first state, whose two fields fla stacks."""
    state: Tensor | None = given["initial_state"]
    if state is None:
        return None
    k, v, cu_seqlens = given["k"], given["v"], given["cu_seqlens"]
    n = count_sequences(name, "v", v, cu_seqlens)
    shape = 2, n, k.shape[2], k.shape[3], v.shape[3]
    check_shape(name, "initial_state", state, shape, "[2, N, H, K, V]")
    return State(*(state_in(x, 1, cu_seqlens) for x in state))
