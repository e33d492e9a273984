"""Delta rules whose keys write through a preconditioner, a decaying sum of their squares.

``A_i = e^{g_atk} A_{i-1} + beta_atk k_i^2`` in each channel; what keys write is multiplied by
``x^{-r / (1 + |r|)}``, ``r = log(A_i + eps) - log_atk_scale``, a number between 1 / x and x.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..._states.state_arrays import State
from .._core import conversions
from ..operators import linear_scan
from ._keywords import Given
from ._layout import check_shape, count_sequences, state_in, state_out
from ._rules import rule
from .delta import gate_of_channels, optional_gates
from .generalized import erased_delta, normalized, per_value_head

_CENTER = -0.2  #: the default of log_atk_scale


def _precondition(name: str, given: Given) -> Tensor:
    """Replaces keys by those that write; returns those that read."""
    k, v = given["k"], given["v"]
    for argument in ("g_atk", "beta_atk"):
        check_shape(name, argument, given[argument], k.shape[:3], "[B, T, H]")
    normalized(given, "q", "k")
    size, given["A"] = _squares(name, given)
    center = given["log_atk_scale"]
    if isinstance(center, Tensor):
        check_shape(name, "log_atk_scale", center, (k.shape[2],), "[H]")
        center = center.unsqueeze(-1).to(size.dtype)
    r = (size + given["eps"]).log() - (_CENTER if center is None else center)
    factor = (-math.log(given["x"]) * r / (1 + r.abs())).exp()
    erase = per_value_head(given["k"], v)
    given["k"] = (factor * given["k"]).to(k.dtype)
    given["state_v_first"] = given["transpose_state_layout"]
    return erase


def _squares(name: str, given: Given) -> tuple[Tensor, Tensor | None]:
    """A of each token, [B, T, H, K], and the last one, [N, H, K]."""
    k, cu_seqlens, start = given["k"], given["cu_seqlens"], given["initial_A_state"]
    dtype = conversions.work_dtype(k.dtype)
    g, beta = (given[x].to(dtype).unsqueeze(-1) for x in ("g_atk", "beta_atk"))
    if start is not None:
        n = count_sequences(name, "q", k, cu_seqlens)
        check_shape(name, "initial_A_state", start, (n, *k.shape[2:]), "[N, H, K]")
        start = State(state_in(start, 1, cu_seqlens), None)
    writes = beta * k.to(dtype).square()
    a: Any = linear_scan(
        g.expand_as(writes).transpose(1, 2), writes.transpose(1, 2), log=True,
        cu_seqlens=cu_seqlens, initial_state=start, return_state=True,
    )  # fmt: skip
    last = state_out(a[1].s, 1, cu_seqlens) if given["output_final_state"] else None
    return a[0].transpose(1, 2), last


def _per_token(name: str, given: Given) -> Given:
    erase = _precondition(name, given)
    none = {"gk": None, "use_gate_in_kernel": False, "use_beta_sigmoid_in_kernel": False,
            "allow_neg_eigval": False}  # fmt: skip
    return optional_gates(name, none | given) | {"erase": erase}


_TYPES: Given = {"x": ("float", "The largest factor."), "beta": "Tensor, [B, T, HV]"}


@rule(
    erased_delta,
    {
        "chunk_precond_gated_delta_rule": "q k v g_atk g beta_atk beta scale initial_state "
        "initial_A_state output_final_state use_qk_l2norm_in_kernel=True cu_seqlens "
        "cu_seqlens_cpu cp_context transpose_state_layout x=1.5 eps=1e-6 log_atk_scale",
    },
    channels=("gk", "erase"),
    more=("A",),
    types=_TYPES,
)
def _gated_delta_rule(name: str, given: Given) -> Given:
    """The gated delta rule whose keys write through a preconditioner.

    Returns
    -------
    o : Tensor, [B, T, HV, V]
    final_state : Tensor, [N, HV, K, V], or None
        float32 or float64; None without ``output_final_state``.
    final_A_state : Tensor, [N, H, K], or None
        The decaying sum of squared keys.
    """
    check_shape(name, "g", given["g"], given["v"].shape[:3], "[B, T, HV]")
    return _per_token(name, given)


@rule(
    erased_delta,
    {
        "fused_recurrent_precond_gated_delta_rule": "q k v g=None gk=None gv beta=None "
        "g_atk=None beta_atk=None scale initial_state initial_A_state output_final_state "
        "use_qk_l2norm_in_kernel=True cu_seqlens transpose_state_layout x=1.5 eps=1e-6 "
        "log_atk_scale",
    },
    channels=("gk", "erase"),
    more=("A",),
    types=_TYPES,
)
def _recurrent_gated_delta_rule(name: str, given: Given) -> Given:
    """The gated delta rule whose keys write through a preconditioner.

    Returns
    -------
    o : Tensor, [B, T, HV, V]
    final_state : Tensor, [N, HV, K, V], or None
        float32 or float64; None without ``output_final_state``.
    final_A_state : Tensor, [N, H, K], or None
        The decaying sum of squared keys.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2, 4)
    >>> run = fla.fused_recurrent_precond_gated_delta_rule
    >>> o, _, _ = run(x, x, x, g_atk=x[..., 0], beta_atk=x[..., 0])
    >>> o.shape
    torch.Size([1, 3, 2, 4])
    """
    return _per_token(name, given)


@rule(
    erased_delta,
    {
        "chunk_precond_kda": "q k v g g_atk beta_atk beta scale initial_state initial_A_state "
        "output_final_state use_gate_in_kernel safe_gate lower_bound cu_seqlens cu_seqlens_cpu "
        "chunk_indices cp_context transpose_state_layout x=1.5 eps=1e-6 log_atk_scale "
        "solve_tril_precision disable_recompute return_intermediate_states "
        "* use_qk_l2norm_in_kernel=True A_log dt_bias **kwargs",
        "fused_recurrent_precond_kda": "q k v g g_atk beta_atk beta A_log dt_bias scale "
        "initial_state initial_A_state output_final_state use_qk_l2norm_in_kernel=True "
        "use_gate_in_kernel lower_bound cu_seqlens transpose_state_layout x=1.5 eps=1e-6 "
        "log_atk_scale **kwargs",
    },
    channels=("g", "erase"),
    more=("A",),
    types=_TYPES | {"g": "Tensor, [B, T, HV, K]"},
)
def _kda(name: str, given: Given) -> Given:
    """Kimi delta attention whose keys write through a preconditioner.

    Returns
    -------
    o : Tensor, [B, T, HV, V]
    final_state : Tensor, [N, HV, K, V], or None
        float32 or float64; None without ``output_final_state``.
    final_A_state : Tensor, [N, H, K], or None
        The decaying sum of squared keys.
    """
    erase = _precondition(name, given)
    return {"g": gate_of_channels(name, given), "beta": given["beta"], "erase": erase}
