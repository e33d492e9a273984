"""Based and ReBased: weights that are polynomials of the scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import conversions
from ..feature_maps import Rebased, Taylor
from ..operators import causal
from ._docs import documented
from ._layout import check_shape, check_tokens

__all__ = ["fused_chunk_based", "parallel_based", "parallel_rebased"]

_TYPES = {"q": "Tensor, [B, T, H, K]", "v": "Tensor, [B, T, H, V]"}
_SERIES, _SQUARE = Taylor(scale=1.0), Rebased(scale=1.0)
_EPS = 1e-6  #: added to Based's denominator


@documented("causal", returns="output", **_TYPES)
def parallel_based(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, use_norm: bool = True
) -> Tensor:
    """Based: weights 1 + s + s^2 / 2, where s is scale times the score."""
    return _based("parallel_based", q, k, v, scale, use_norm)


@documented("causal", returns="output", **_TYPES)
def fused_chunk_based(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, use_norm: bool = True
) -> Tensor:
    """Based: weights 1 + s + s^2 / 2, where s is scale times the score."""
    return _based("fused_chunk_based", q, k, v, scale, use_norm)


def _based(
    name: str, q: Tensor, k: Tensor, v: Tensor, scale: float | None, use_norm: bool
) -> Tensor:
    q, k, v, dtype = _heads_first(name, q, k, v)
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    o: Any = causal(_SERIES(q), _SERIES(k), v, feature_map="identity", normalize=use_norm, eps=_EPS)
    return o.transpose(1, 2).to(dtype).contiguous()


@documented("causal", returns="rebased", **_TYPES)
def parallel_rebased(
    q: Tensor, k: Tensor, v: Tensor, eps: float = 1e-5, use_scale: bool = True,
    use_normalize: bool = True, return_both: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """ReBased: weights s^2, where s is the score."""
    q, k, v, dtype = _heads_first("parallel_rebased", q, k, v)
    phi = Rebased() if use_scale else _SQUARE
    q, k = phi(q), phi(k)
    if return_both:
        v = torch.cat([v, v.new_ones((*v.shape[:-1], 1))], -1)
    normalize = use_normalize and not return_both
    o: Any = causal(q, k, v, feature_map="identity", normalize=normalize, eps=eps)
    if return_both:
        return o[..., :-1].to(dtype), o[..., -1].to(dtype)
    return o.transpose(1, 2).to(dtype).contiguous()


def _heads_first(name: str, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """(B, H, T, K) operands, wide enough for products, and the dtype of the result."""
    check_tokens(name, q, k, v, None)
    check_shape(name, "v", v, (*k.shape[:3], v.shape[3]), "[B, T, H, V]")
    dtype = conversions.promotion(x.dtype for x in (q, k, v))
    return *(x.transpose(1, 2).to(conversions.work_dtype(dtype)) for x in (q, k, v)), dtype
