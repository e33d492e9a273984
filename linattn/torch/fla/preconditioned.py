# mypy: disable-error-code="empty-body"
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
from ._layout import check_shape, count_sequences, sequence_bounds, state_in, state_out
from ._rules import Rule, function
from .delta import gate_of_channels, optional_gates
from .generalized import erased_delta, normalized, per_value_head

__all__ = [
    "chunk_precond_gated_delta_rule", "chunk_precond_kda",
    "fused_recurrent_precond_gated_delta_rule", "fused_recurrent_precond_kda",
]  # fmt: skip

Result = tuple[Tensor, Tensor | None, Tensor | None]
_CENTER = -0.2  #: the default of log_atk_scale


def _precondition(name: str, given: Given) -> Given:
    """Keys that read, keys that write, and the last A."""
    k, v = given["k"], given["v"]
    for argument in ("g_atk", "beta_atk"):
        check_shape(name, argument, given[argument], k.shape[:3], "[B, T, H]")
    x = normalized(given, "q", "k")
    size, last = _squares(name, given, x["k"])
    center = given["log_atk_scale"]
    if isinstance(center, Tensor):
        check_shape(name, "log_atk_scale", center, (k.shape[2],), "[H]")
        center = center.unsqueeze(-1).to(size.dtype)
    r = (size + given["eps"]).log() - (_CENTER if center is None else center)
    factor = (-math.log(given["x"]) * r / (1 + r.abs())).exp()
    erase = per_value_head(x["k"], v)
    return x | {"k": (factor * x["k"]).to(k.dtype), "erase": erase, "A": last}


def _squares(name: str, given: Given, k: Tensor) -> tuple[Tensor, Tensor | None]:
    """A of each token, [B, T, H, K], and the last one, [N, H, K]."""
    dtype = conversions.work_dtype(k.dtype)
    g, beta = (given[x].to(dtype).unsqueeze(-1) for x in ("g_atk", "beta_atk"))
    cu_seqlens, start = given["cu_seqlens"], given["initial_A_state"]
    cu_seqlens = None if cu_seqlens is None else sequence_bounds(cu_seqlens)
    first = None
    if start is not None:
        n = count_sequences(name, "q", k, cu_seqlens)
        check_shape(name, "initial_A_state", start, (n, *k.shape[2:]), "[N, H, K]")
        first = State(state_in(start, 1, cu_seqlens), None)
    writes = beta * k.to(dtype).square()
    a: Any = linear_scan(
        g.expand_as(writes).transpose(1, 2), writes.transpose(1, 2), log=True,
        cu_seqlens=cu_seqlens, initial_state=first, return_state=True,
    )  # fmt: skip
    last = state_out(a[1].s, 1, cu_seqlens) if given["output_final_state"] else None
    return a[0].transpose(1, 2), last


def _per_token(name: str, given: Given) -> dict[str, Tensor]:
    none = {"gk": None, "use_gate_in_kernel": False, "use_beta_sigmoid_in_kernel": False,
            "allow_neg_eigval": False}  # fmt: skip
    return optional_gates(name, none | given) | {"erase": given["erase"]}


def _required(name: str, given: Given) -> dict[str, Tensor]:
    check_shape(name, "g", given["g"], given["v"].shape[:3], "[B, T, HV]")
    return _per_token(name, given)


def _per_channel(name: str, given: Given) -> dict[str, Tensor]:
    g = gate_of_channels(name, given)
    return {"g": g, "beta": given["beta"], "erase": given["erase"]}


PRECONDITIONED = Rule(
    erased_delta, _per_token, _precondition, channels=("gk", "erase"), v_first=True, more=("A",)
)
_TYPES: Given = {"x": ("float", "The largest factor."), "beta": "Tensor, [B, T, HV]"}


@function(PRECONDITIONED._replace(extras=_required), "preconditioned", **_TYPES)
def chunk_precond_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g_atk: Tensor, g: Tensor, beta_atk: Tensor, beta: Tensor,
    scale: float | None = None, initial_state: Tensor | None = None,
    initial_A_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = True, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, cp_context: Any = None,
    transpose_state_layout: bool = False, x: float = 1.5, eps: float = 1e-6,
    log_atk_scale: Tensor | float | None = None,
) -> Result:  # fmt: skip
    """The gated delta rule whose keys write through a preconditioner."""


@function(PRECONDITIONED, "preconditioned", **_TYPES)
def fused_recurrent_precond_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None,
    gv: Tensor | None = None, beta: Tensor | None = None, g_atk: Tensor | None = None,
    beta_atk: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, initial_A_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: Tensor | None = None, transpose_state_layout: bool = False, x: float = 1.5,
    eps: float = 1e-6, log_atk_scale: Tensor | float | None = None,
) -> Result:  # fmt: skip
    """The gated delta rule whose keys write through a preconditioner.

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


PRECONDITIONED_KDA = PRECONDITIONED._replace(extras=_per_channel, channels=("g", "erase"))
_BY_CHANNEL = _TYPES | {"g": "Tensor, [B, T, HV, K]"}


@function(PRECONDITIONED_KDA, "preconditioned", **_BY_CHANNEL)
def chunk_precond_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, g_atk: Tensor, beta_atk: Tensor, beta: Tensor,
    scale: float | None = None, initial_state: Tensor | None = None,
    initial_A_state: Tensor | None = None, output_final_state: bool = False,
    use_gate_in_kernel: bool = False, safe_gate: bool = False, lower_bound: float | None = None,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None, cp_context: Any = None,
    transpose_state_layout: bool = False, x: float = 1.5, eps: float = 1e-6,
    log_atk_scale: Tensor | float | None = None, solve_tril_precision: str | None = None,
    disable_recompute: bool = False, return_intermediate_states: bool = False, *,
    use_qk_l2norm_in_kernel: bool = True, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Kimi delta attention whose keys write through a preconditioner."""


@function(PRECONDITIONED_KDA, "preconditioned", **_BY_CHANNEL)
def fused_recurrent_precond_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, g_atk: Tensor, beta_atk: Tensor, beta: Tensor,
    A_log: Tensor | None = None, dt_bias: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, initial_A_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = True,
    use_gate_in_kernel: bool = False, lower_bound: float | None = None,
    cu_seqlens: Tensor | None = None, transpose_state_layout: bool = False, x: float = 1.5,
    eps: float = 1e-6, log_atk_scale: Tensor | float | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Kimi delta attention whose keys write through a preconditioner."""
