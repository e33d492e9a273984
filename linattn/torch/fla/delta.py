# mypy: disable-error-code="empty-body"
"""The delta rules: delta_rule, gated_delta_rule, kda, dplr_delta_rule, rwkv7.

Functions are declared by their signatures; `function` makes their bodies from a rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import delta, dplr, gated_delta, log_decay
from ._keywords import Given
from ._layout import check_shape, check_tensor, no_decay
from ._rules import Rule, function, named

__all__ = [
    "chunk_delta_rule", "chunk_dplr_delta_rule", "chunk_gated_delta_rule", "chunk_gdn", "chunk_kda",
    "chunk_rwkv7", "fused_mul_recurrent_rwkv7", "fused_recurrent_delta_rule",
    "fused_recurrent_dplr_delta_rule", "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn",
    "fused_recurrent_kda", "fused_recurrent_rwkv7", "parallel_delta_rule",
]  # fmt: skip

Result = tuple[Tensor, Any]


def _map(name: str, given: Given) -> Given:
    return {"feature_map": "l2norm" if given["use_qk_l2norm_in_kernel"] else "identity"}


def _beta_or_one(given: Given) -> Tensor:
    beta, v = given["beta"], given["v"]
    return v.new_ones(()).expand(v.shape[:3]) if beta is None else beta


def _optional_beta(name: str, given: Given) -> dict[str, Tensor]:
    return {"beta": _beta_or_one(given)}


@function(Rule(delta, named("beta"), options=_map))
def chunk_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The delta rule."""


@function(Rule(delta, _optional_beta, options=_map))
def fused_recurrent_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """The delta rule; beta defaults to 1."""


@function(Rule(delta, named("beta")), "parallel")
def parallel_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None,
    output_attentions: bool = False,
) -> Result:  # fmt: skip
    """The delta rule without states."""


def _strength(name: str, given: Given, beta: Tensor) -> Tensor:
    """The write strength from beta, which may be the input of a sigmoid."""
    sigmoid, negative = given["use_beta_sigmoid_in_kernel"], given["allow_neg_eigval"]
    if negative and not sigmoid:
        raise ValueError(
            f"{name}: allow_neg_eigval is True; expected use_beta_sigmoid_in_kernel as well"
        )
    if not sigmoid:
        return beta
    check_tensor(name, "beta", beta)
    return 2 * beta.sigmoid() if negative else beta.sigmoid()


def _gate(
    name: str, g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None,
    lower_bound: float | None = None,
) -> Tensor:  # fmt: skip
    """The log decay from the raw gate g, in float32 or float64."""
    if A_log is None and lower_bound is None:
        raise ValueError(f"{name}: A_log is None; expected the logarithm of the rate of each head")
    check_tensor(name, "g", g)
    g = g if g.dtype is torch.float64 else g.float()
    A_log, dt_bias = (
        torch.zeros((), device=g.device) if x is None else x for x in (A_log, dt_bias)
    )
    return log_decay(g, A_log, dt_bias, lower_bound=lower_bound)


def _gate_per_token(name: str, given: Given) -> dict[str, Tensor]:
    g = given["g"]
    if given["use_gate_in_kernel"]:
        g = _gate(name, g, given["A_log"], given["dt_bias"])
    return {"g": g, "beta": _strength(name, given, given["beta"])}


def optional_gates(name: str, given: Given) -> dict[str, Tensor]:
    """g, gk or their sum, or no decay; beta may be None."""
    g, gk, v = given["g"], given["gk"], given["v"]
    beta = _strength(name, given, _beta_or_one(given))
    if given["use_gate_in_kernel"]:
        if g is None:
            raise ValueError(f"{name}: g is None; expected the raw gate with use_gate_in_kernel")
        g = _gate(name, g, given["A_log"], given["dt_bias"])
    if gk is None:
        return {"g": no_decay(v) if g is None else g, "beta": beta}
    if g is not None:
        check_shape(name, "g", g, v.shape[:3], "[B, T, HV]")
        gk = gk + g.unsqueeze(-1)
    return {"gk": gk, "beta": beta}


GATED_DELTA_RULE = Rule(gated_delta, _gate_per_token, options=_map, v_first=True)


@function(GATED_DELTA_RULE)
def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, chunk_indices: Tensor | None = None,
    cp_context: Any = None, *, use_gate_in_kernel: bool = False, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The gated delta rule, one log decay per token and value head."""


@function(GATED_DELTA_RULE._replace(extras=optional_gates, channels=("gk",)))
def fused_recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None,
    gv: Tensor | None = None, beta: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None, dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The gated delta rule; log decays g per token, gk per key and gv per value channel.

    gv makes each value channel a head, which takes V times the memory for decays, and longer.
    """


chunk_gdn, fused_recurrent_gdn = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule


def gate_of_channels(name: str, given: Given) -> Tensor:
    """Log decays [B, T, HV, K], given or computed from the raw gate."""
    g, lower_bound = given["g"], given["lower_bound"]
    if not given["use_gate_in_kernel"]:
        return g
    if given.get("safe_gate") and (lower_bound is None or not -5 <= lower_bound < 0):
        raise ValueError(
            f"{name}: lower_bound is {lower_bound}; expected a number in [-5, 0) with safe_gate"
        )
    A_log, dt_bias = given["A_log"], given["dt_bias"]
    A_log = None if A_log is None else A_log.reshape(-1, 1)
    dt_bias = None if dt_bias is None else dt_bias.reshape(given["v"].shape[2], -1)
    return _gate(name, g, A_log, dt_bias, lower_bound)


def _gate_per_channel(name: str, given: Given) -> dict[str, Tensor]:
    beta = _strength(name, given, given["beta"])
    return {"g": gate_of_channels(name, given), "beta": beta}


KDA = GATED_DELTA_RULE._replace(extras=_gate_per_channel, channels=("g",))


@function(KDA, g="Tensor, [B, T, HV, K]")
def chunk_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    safe_gate: bool = False, lower_bound: float | None = None, disable_recompute: bool = False,
    return_intermediate_states: bool = False, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, cp_context: Any = None,
    use_graph: bool = False, max_num_seqs: int | None = None, *, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Kimi delta attention: the gated delta rule, one log decay per key channel."""


@function(KDA, g="Tensor, [B, T, HV, K]")
def fused_recurrent_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False, lower_bound: float | None = None, state_v_first: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Kimi delta attention: the gated delta rule, one log decay per key channel."""


DPLR_DELTA_RULE = Rule(dplr, named("a", "b", "gk"), channels=("a", "b", "gk"))


@function(DPLR_DELTA_RULE)
def chunk_dplr_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, safe_gate: bool = False,
    chunk_size: int | None = None, disable_recompute: bool = False, cp_context: Any = None,
    lower_bound: float | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The generalised delta rule, log decays gk [B, T, H, K]."""


@function(DPLR_DELTA_RULE)
def fused_recurrent_dplr_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """The generalised delta rule, log decays gk [B, T, H, K]."""


RWKV7 = Rule(dplr, named("a", "b", "w"), channels=("a", "b", "w"))


@function(RWKV7)
def chunk_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = 1.0,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, safe_gate: bool = False,
    chunk_size: int | None = None, disable_recompute: bool = False, cp_context: Any = None,
    lower_bound: float | None = None,
) -> Result:  # fmt: skip
    """RWKV-7, log decays w [B, T, H, K]."""


@function(RWKV7)
def fused_recurrent_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """RWKV-7, log decays w [B, T, H, K]."""


def _removal_key(name: str, given: Given) -> dict[str, Tensor]:
    kk, a = given["kk"], given["a"]
    for argument, x in (("kk", kk), ("a", a)):
        check_tensor(name, argument, x)
    return {"a": -kk, "b": kk * a, "w": given["w"]}


@function(RWKV7._replace(extras=_removal_key))
def fused_mul_recurrent_rwkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, scale: float | None = 1.0,
    initial_state: Tensor | None = None, output_final_state: bool = False, reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """RWKV-7 from the removal key kk and the rate a: ``chunk_rwkv7`` with a = -kk, b = kk a."""
