"""Memories that are corrected: delta_rule, gated_delta_rule, kda, dplr_delta_rule, rwkv7."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import delta, dplr, gated_delta, log_decay
from ._docs import documented
from ._layout import check_shape, check_tensor, no_decay, refuse, run, v_first

Result = tuple[Tensor, Any]


@documented("delta")
def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """The delta rule."""
    refuse("chunk_delta_rule", kwargs)
    return run(
        "chunk_delta_rule", delta, q, k, v, {"beta": beta}, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        feature_map=_map(use_qk_l2norm_in_kernel), cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("delta")
def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """The delta rule; beta is 1 where it is None."""
    return run(
        "fused_recurrent_delta_rule", delta, q, k, v, {"beta": _strength(beta, v)}, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        feature_map=_map(use_qk_l2norm_in_kernel), cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated_delta")
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """The gated delta rule, one log decay a token and value head."""
    name = "chunk_gated_delta_rule"
    state_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, kwargs | {"cp_context": cp_context})
    beta = _sigmoid(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if use_gate_in_kernel:
        g = _gate(name, g, A_log, dt_bias, None)
    return run(
        name, gated_delta, q, k, v, {"g": g, "beta": beta}, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        feature_map=_map(use_qk_l2norm_in_kernel), state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated_delta")
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """The gated delta rule; g a log decay a token, gk one a key channel, their sum if both."""
    name = "fused_recurrent_gated_delta_rule"
    state_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, kwargs | {"gv": gv})
    beta = _sigmoid(name, _strength(beta, v), use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if use_gate_in_kernel:
        if g is None:
            raise ValueError(f"{name}: g is None; expected what the gate is computed from")
        g = _gate(name, g, A_log, dt_bias, None)
    gate = {"g": no_decay(v) if g is None else g}
    if gk is not None:
        if g is not None:
            check_shape(name, "g", g, v.shape[:3], "[B, T, HV]")
            gk = gk + g.unsqueeze(-1)
        gate = {"gk": gk}
    return run(
        name, gated_delta, q, k, v, gate | {"beta": beta}, channels=("gk",), scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        feature_map=_map(use_qk_l2norm_in_kernel), state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated_delta", g="Tensor, [B, T, HV, K]")
def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Kimi delta attention: the gated delta rule, one log decay a key channel."""
    name = "chunk_kda"
    state_v_first = v_first(name, state_v_first, kwargs)
    absent = {
        "return_intermediate_states": return_intermediate_states, "cp_context": cp_context,
        "use_graph": use_graph, "max_num_seqs": max_num_seqs,
    }  # fmt: skip
    refuse(name, kwargs | absent)
    if safe_gate and use_gate_in_kernel and (lower_bound is None or not -5 <= lower_bound < 0):
        raise ValueError(
            f"{name}: lower_bound is {lower_bound}; expected a number of [-5, 0) with safe_gate"
        )
    return _kda(
        name, q, k, v, g, beta, use_gate_in_kernel, A_log, dt_bias, lower_bound,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, feature_map=_map(use_qk_l2norm_in_kernel),
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("gated_delta", g="Tensor, [B, T, HV, K]")
def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Result:
    """Kimi delta attention: the gated delta rule, one log decay a key channel."""
    name = "fused_recurrent_kda"
    state_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, kwargs)
    return _kda(
        name, q, k, v, g, beta, use_gate_in_kernel, A_log, dt_bias, lower_bound,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, feature_map=_map(use_qk_l2norm_in_kernel),
        state_v_first=state_v_first, cu_seqlens=cu_seqlens,
    )  # fmt: skip


def _kda(
    name: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, use_gate: bool,
    A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None, sigmoid: bool,
    negative: bool, **options: Any,
) -> Result:  # fmt: skip
    beta = _sigmoid(name, beta, sigmoid, negative)
    if use_gate:
        if A_log is not None:
            A_log = A_log.reshape(-1, 1)
        if dt_bias is not None:
            dt_bias = dt_bias.reshape(v.shape[2], -1)
        g = _gate(name, g, A_log, dt_bias, lower_bound)
    return run(name, gated_delta, q, k, v, {"g": g, "beta": beta}, channels=("g",), **options)


@documented("dplr")
def chunk_dplr_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    gk: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    chunk_size: int | None = None,
    disable_recompute: bool = False,
    cp_context: Any = None,
    lower_bound: float | None = None,
    **kwargs: Any,
) -> Result:
    """The generalised delta rule, log decays gk [B, T, H, K]; bounds of gates are hints."""
    name = "chunk_dplr_delta_rule"
    refuse(name, kwargs | {"cp_context": cp_context})
    return _dplr(
        name, q, k, v, {"a": a, "b": b, "gk": gk}, scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("dplr")
def fused_recurrent_dplr_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    gk: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """The generalised delta rule, log decays gk [B, T, H, K]."""
    return _dplr(
        "fused_recurrent_dplr_delta_rule", q, k, v, {"a": a, "b": b, "gk": gk}, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, reverse=reverse,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("dplr")
def chunk_rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float | None = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    chunk_size: int | None = None,
    disable_recompute: bool = False,
    cp_context: Any = None,
    lower_bound: float | None = None,
) -> Result:
    """RWKV-7, log decays w [B, T, H, K]; bounds of gates are hints."""
    refuse("chunk_rwkv7", {"cp_context": cp_context})
    return _dplr(
        "chunk_rwkv7", r, k, v, {"a": a, "b": b, "w": w}, scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("dplr")
def fused_recurrent_rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """RWKV-7, log decays w [B, T, H, K]."""
    return _dplr(
        "fused_recurrent_rwkv7", r, k, v, {"a": a, "b": b, "w": w}, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@documented("dplr")
def fused_mul_recurrent_rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    kk: Tensor,
    a: Tensor,
    scale: float | None = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:
    """RWKV-7 from the removal key kk and the rate a: its a is -kk, its b is kk a."""
    for argument, x in (("kk", kk), ("a", a)):
        check_tensor("fused_mul_recurrent_rwkv7", argument, x)
    return _dplr(
        "fused_mul_recurrent_rwkv7", r, k, v, {"a": -kk, "b": kk * a, "w": w}, scale=scale,
        initial_state=initial_state, output_final_state=output_final_state, reverse=reverse,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


chunk_gdn, fused_recurrent_gdn = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule


def _dplr(
    name: str, q: Tensor, k: Tensor, v: Tensor, extras: dict[str, Tensor], **options: Any
) -> Result:
    return run(name, dplr, q, k, v, extras, channels=tuple(extras), **options)


def _map(l2norm: bool) -> str:
    return "l2norm" if l2norm else "identity"


def _strength(beta: Tensor | None, v: Any) -> Any:
    absent = beta is None and isinstance(v, Tensor)  # the check of v comes first
    return v.new_ones(()).expand(v.shape[:3]) if absent else beta


def _sigmoid(name: str, beta: Tensor, apply: bool, negative: bool) -> Tensor:
    """beta from what a model computes."""
    if negative and not apply:
        raise ValueError(
            f"{name}: allow_neg_eigval is True; expected use_beta_sigmoid_in_kernel as well"
        )
    if not apply:
        return beta
    check_tensor(name, "beta", beta)
    return 2 * beta.sigmoid() if negative else beta.sigmoid()


def _gate(
    name: str, g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None
) -> Tensor:
    """The log decay from what a model computes, in float32 at least."""
    if A_log is None and lower_bound is None:
        raise ValueError(f"{name}: A_log is None; expected the logarithm of the rate of each head")
    check_tensor(name, "g", g)
    g = g if g.dtype is torch.float64 else g.float()
    A_log, dt_bias = (
        torch.zeros((), device=g.device) if x is None else x for x in (A_log, dt_bias)
    )
    return log_decay(g, A_log, dt_bias, lower_bound=lower_bound)
