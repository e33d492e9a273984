"""The delta rules: delta_rule, gated_delta_rule, kda, dplr_delta_rule, rwkv7."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators import delta, dplr, gated_delta, log_decay
from ._keywords import Given, states_v_first
from ._layout import check_shape, check_tensor, no_decay
from ._rules import FUNCTIONS, rule


def mapped(name: str, given: Given) -> Given:
    return {"feature_map": "l2norm" if given["use_qk_l2norm_in_kernel"] else "identity"}


@rule(
    delta,
    {
        "chunk_delta_rule": "q k v beta scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel cu_seqlens cu_seqlens_cpu **kwargs",
    },
    options=mapped,
)
def _delta_rule(name: str, given: Given) -> Given:
    """The delta rule."""
    return {"beta": given["beta"]}


@rule(
    delta,
    {
        "fused_recurrent_delta_rule": "q k v beta=None scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel cu_seqlens",
    },
    options=mapped,
)
def _recurrent_delta_rule(name: str, given: Given) -> Given:
    """The delta rule; beta defaults to 1."""
    return {"beta": _beta_or_one(given)}


@rule(delta, {"parallel_delta_rule": "q k v beta scale output_attentions"})
def _parallel_delta_rule(name: str, given: Given) -> Given:
    """The delta rule without states."""
    return {"beta": given["beta"]}


def _beta_or_one(given: Given) -> Tensor:
    beta, v = given["beta"], given["v"]
    return v.new_ones(()).expand(v.shape[:3]) if beta is None else beta


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


def log_decays(
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


@rule(
    gated_delta,
    {
        "chunk_gated_delta_rule": "q k v g beta scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval state_v_first "
        "cu_seqlens cu_seqlens_cpu chunk_indices cp_context * use_gate_in_kernel A_log dt_bias "
        "cu_seq_lens_q seq_idx **kwargs",
    },
    options=mapped,
    former=states_v_first,
)
def _gated_delta_rule(name: str, given: Given) -> Given:
    """The gated delta rule, one log decay per token and value head."""
    g = given["g"]
    if given["use_gate_in_kernel"]:
        g = log_decays(name, g, given["A_log"], given["dt_bias"])
    return {"g": g, "beta": _strength(name, given, given["beta"])}


@rule(
    gated_delta,
    {
        "fused_recurrent_gated_delta_rule": "q k v g=None gk=None gv beta=None scale "
        "initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel A_log "
        "dt_bias use_beta_sigmoid_in_kernel allow_neg_eigval state_v_first cu_seqlens * "
        "cu_seq_lens_q seq_idx **kwargs",
    },
    channels=("gk",),
    options=mapped,
    former=states_v_first,
)
def optional_gates(name: str, given: Given) -> Given:
    """The gated delta rule; log decays g per token, gk per key and gv per value channel.

    gv makes each value channel a head, which takes V times the memory for decays, and longer.
    """
    g, gk, v = given["g"], given["gk"], given["v"]
    beta = _strength(name, given, _beta_or_one(given))
    if given["use_gate_in_kernel"]:
        if g is None:
            raise ValueError(f"{name}: g is None; expected the raw gate with use_gate_in_kernel")
        g = log_decays(name, g, given["A_log"], given["dt_bias"])
    if gk is None:
        return {"g": no_decay(v) if g is None else g, "beta": beta}
    if g is not None:
        check_shape(name, "g", g, v.shape[:3], "[B, T, HV]")
        gk = gk + g.unsqueeze(-1)
    return {"gk": gk, "beta": beta}


for form in ("chunk", "fused_recurrent"):
    FUNCTIONS[f"{form}_gdn"] = FUNCTIONS[f"{form}_gated_delta_rule"]


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
    return log_decays(name, g, A_log, dt_bias, lower_bound)


@rule(
    gated_delta,
    {
        "chunk_kda": "q k v g beta scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel use_gate_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval "
        "safe_gate lower_bound disable_recompute return_intermediate_states state_v_first "
        "cu_seqlens cu_seqlens_cpu cp_context use_graph max_num_seqs * A_log dt_bias cu_seq_lens_q "
        "seq_idx **kwargs",
        "fused_recurrent_kda": "q k v g beta A_log dt_bias scale initial_state "
        "output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel "
        "use_beta_sigmoid_in_kernel allow_neg_eigval lower_bound state_v_first cu_seqlens * "
        "cu_seq_lens_q seq_idx **kwargs",
    },
    channels=("g",),
    options=mapped,
    former=states_v_first,
    types={"g": "Tensor, [B, T, HV, K]"},
)
def _kda(name: str, given: Given) -> Given:
    """Kimi delta attention: the gated delta rule, one log decay per key channel."""
    beta = _strength(name, given, given["beta"])
    return {"g": gate_of_channels(name, given), "beta": beta}


@rule(
    dplr,
    {
        "chunk_dplr_delta_rule": "q k v a b gk scale initial_state output_final_state cu_seqlens "
        "cu_seqlens_cpu safe_gate chunk_size disable_recompute cp_context lower_bound **kwargs",
        "fused_recurrent_dplr_delta_rule": "q k v a b gk scale initial_state output_final_state "
        "reverse cu_seqlens",
    },
    channels=("a", "b", "gk"),
)
def _dplr_delta_rule(name: str, given: Given) -> Given:
    """The generalised delta rule, log decays gk [B, T, H, K]."""
    return {x: given[x] for x in ("a", "b", "gk")}


@rule(
    dplr,
    {
        "chunk_rwkv7": "r w k v a b scale=1.0 initial_state output_final_state cu_seqlens "
        "cu_seqlens_cpu safe_gate chunk_size disable_recompute cp_context lower_bound",
        "fused_recurrent_rwkv7": "r w k v a b scale initial_state output_final_state=True "
        "cu_seqlens",
    },
    channels=("a", "b", "w"),
)
def _rwkv7(name: str, given: Given) -> Given:
    """RWKV-7, log decays w [B, T, H, K]."""
    return {x: given[x] for x in ("a", "b", "w")}


@rule(
    dplr,
    {
        "fused_mul_recurrent_rwkv7": "r w k v kk a scale=1.0 initial_state output_final_state "
        "reverse cu_seqlens",
    },
    channels=("a", "b", "w"),
)
def _mul_rwkv7(name: str, given: Given) -> Given:
    """RWKV-7 from the removal key kk and the rate a: ``chunk_rwkv7`` with a = -kk, b = kk a."""
    kk, a = given["kk"], given["a"]
    for argument, x in (("kk", kk), ("a", a)):
        check_tensor(name, argument, x)
    return {"a": -kk, "b": kk * a, "w": given["w"]}
