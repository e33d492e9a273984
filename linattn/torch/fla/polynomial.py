"""Based and ReBased: weights that are polynomials of the scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import conversions
from ..feature_maps import Rebased, Taylor
from ..operators import causal
from ._keywords import Given
from ._layout import check_tokens, scale_of
from ._rules import family

_VALUES = "Tensor, [B, T, H, V]"
_SERIES, _SQUARE = Taylor(scale=1.0), Rebased(scale=1.0)
_EPS = 1e-6  #: added to Based's denominator


@family(
    "causal",
    {
        "parallel_based": "q k v scale use_norm=True",
        "fused_chunk_based": "q k v scale use_norm=True",
    },
    types={"v": _VALUES},
)
def _based(name: str, given: Given) -> Tensor:
    """Based: weights 1 + s + s^2 / 2, where s is scale times the score.

    Returns
    -------
    o : Tensor, [B, T, H, V]
    """
    q, k, v = _heads_first(name, given)
    q = q * scale_of(given)
    o: Any = causal(_SERIES(q), _SERIES(k), v, feature_map="identity",
                    normalize=given["use_norm"], eps=_EPS)  # fmt: skip
    return o.transpose(1, 2).to(given["dtype"]).contiguous()


@family(
    "causal",
    {"parallel_rebased": "q k v eps=1e-5 use_scale=True use_normalize=True return_both"},
    types={"v": _VALUES},
)
def _rebased(name: str, given: Given) -> Tensor | tuple[Tensor, Tensor]:
    """ReBased: weights s^2, where s is the score.

    Returns
    -------
    o : Tensor, [B, T, H, V]
        With ``return_both`` a pair of [B, H, T, V] and [B, H, T].
    """
    q, k, v = _heads_first(name, given)
    phi = Rebased() if given["use_scale"] else _SQUARE
    q, k, both = phi(q), phi(k), given["return_both"]
    if both:
        v = torch.cat([v, v.new_ones((*v.shape[:-1], 1))], -1)
    normalize = given["use_normalize"] and not both
    o: Any = causal(q, k, v, feature_map="identity", normalize=normalize, eps=given["eps"])
    if both:
        return o[..., :-1].to(given["dtype"]), o[..., -1].to(given["dtype"])
    return o.transpose(1, 2).to(given["dtype"]).contiguous()


def _heads_first(name: str, given: Given) -> list[Tensor]:
    """(B, H, T, K) operands, wide enough for products."""
    check_tokens(name, given, grouped=False)
    wide = conversions.work_dtype(given["dtype"])
    return [given[x].transpose(1, 2).to(wide) for x in "qkv"]
