"""Groups of channels that share B and C, in the layout of linattn's scan."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.conversions import work_dtype


def token_major(shape: torch.Size, *bc: Tensor) -> tuple[int, tuple[Tensor, ...]]:
    """The number of groups, and B and C as (batch or 1, groups or 1, seqlen, dstate).

    ``shape`` is (batch, dim, seqlen).  B or C of (dim, dstate) makes each channel a group.
    """
    dim, n = shape[1:]
    found = [dim if x.ndim == 2 else x.shape[1] if x.ndim == 4 else 1 for x in bc]
    groups = max(found)
    if any(groups % x for x in found):  # unlike numbers, neither a multiple of the other
        groups = dim
    return groups, tuple(_token_major(x, groups, n) for x in bc)


def _token_major(x: Tensor, groups: int, n: int) -> Tensor:
    if x.ndim == 2:
        return x[None, :, None].expand(1, -1, n, -1)
    x = x.mT if x.ndim == 4 else x.mT[:, None]
    if x.shape[1] in (1, groups):
        return x
    # In 32 bits, as gradients of the repeats are added up.
    return x.to(work_dtype(x.dtype)).repeat_interleave(groups // x.shape[1], 1)


def in_groups(x: Tensor, groups: int) -> Tensor:
    """(batch, seqlen, dim) as (batch, groups, seqlen, dim / groups)."""
    return x.unflatten(-1, (groups, -1)).transpose(1, 2)


def channels_first(y: Tensor) -> Tensor:
    """(batch, groups, seqlen, dim / groups) as (batch, dim, seqlen)."""
    return y.mT.flatten(1, 2)
