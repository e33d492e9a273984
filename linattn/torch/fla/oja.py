"""The gated Oja rule: a delta rule whose values erase keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._core import conversions
from ..feature_maps import L2Norm
from ..operators import gated_delta
from . import _layout
from ._columns import exchanged
from ._docs import documented
from ._keywords import refuse
from ._layout import check_shape, check_tokens, sequence_bounds

__all__ = ["chunk_gated_oja_rule", "fused_recurrent_gated_oja_rule"]

Result = tuple[Tensor, Any]
_NORM = L2Norm()
_OPERATOR = exchanged(gated_delta)


@documented("gated_delta", gv="Tensor, [B, T, HV, V]")
def chunk_gated_oja_rule(
    q: Tensor, k: Tensor, v: Tensor, gv: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_q_l2norm: bool = False, use_k_l2norm: bool = False, cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The gated Oja rule: what the state has at a value is taken off the key that is written."""
    return _oja("chunk_gated_oja_rule", q, k, v, gv, beta, scale, initial_state,
                output_final_state, (use_q_l2norm, use_k_l2norm), cu_seqlens, kwargs)  # fmt: skip


@documented("gated_delta")
def fused_recurrent_gated_oja_rule(
    q: Tensor, k: Tensor, v: Tensor, gv: Tensor | None = None, beta: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_q_l2norm: bool = False, use_k_l2norm: bool = False,
    cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The gated Oja rule: what the state has at a value is taken off the key that is written."""
    name = "fused_recurrent_gated_oja_rule"
    if gv is None:
        gv = v.new_zeros(()).expand_as(v)
    if beta is None:
        beta = v.new_ones(()).expand(v.shape[:3])
    return _oja(name, q, k, v, gv, beta, scale, initial_state, output_final_state,
                (use_q_l2norm, use_k_l2norm), cu_seqlens, kwargs)  # fmt: skip


def _oja(
    name: str, q: Tensor, k: Tensor, v: Tensor, gv: Tensor, beta: Tensor, scale: float | None,
    initial_state: Tensor | None, output_final_state: bool, normalize: tuple[bool, bool],
    cu_seqlens: Any, more: dict[str, Any],
) -> Result:  # fmt: skip
    if "use_qk_l2norm_in_kernel" in more:
        both = bool(more.pop("use_qk_l2norm_in_kernel"))
        normalize = normalize if any(normalize) else (both, both)
    refuse(name, more)
    cu_seqlens = None if cu_seqlens is None else sequence_bounds(cu_seqlens)
    check_tokens(name, q, k, v, cu_seqlens)
    check_shape(name, "gv", gv, v.shape, "[B, T, HV, V]")
    check_shape(name, "beta", beta, v.shape[:3], "[B, T, HV]")
    dtype = conversions.promotion(x.dtype for x in (q, k, v))
    q, k = (_NORM(x) if norm else x for x, norm in zip((q, k), normalize, strict=True))
    return _layout.run(
        name, _OPERATOR, q, k, v, {"gv": gv, "beta": beta}, scale=scale, dtype=dtype,
        initial_state=initial_state, output_final_state=output_final_state, cu_seqlens=cu_seqlens,
    )  # fmt: skip
