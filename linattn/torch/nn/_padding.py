"""Batches of sequences of different lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _arguments


class Padding:
    """The positions of padding, and the conversion to sequences with padding at the end.

    Parameters
    ----------
    lengths : tensor, shape (batch,)
        The number of tokens of each sequence.
    n : int
        The number of tokens, padding included.
    order : tensor, shape (batch, n), optional
        The positions of the tokens, then of padding; None if padding is at the end already.
    """

    def __init__(self, lengths: Tensor, n: int, order: Tensor | None = None) -> None:
        self.lengths, self._order = lengths, order
        #: (batch, n), True for tokens, once padding is at the end.
        self.there = torch.arange(n, device=lengths.device) < lengths[:, None]

    def strip(self, x: Tensor) -> Tensor:
        """x (batch, n, width) with all padding at the end, as zeros in place of any NaN."""
        return torch.where(self.there[..., None], self._ordered(x, self._order), 0)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of `strip`, except that padding is 0."""
        x = torch.where(self.there[..., None], x, 0)
        return x if self._order is None else self._ordered(x, self._order.argsort(dim=1))

    @staticmethod
    def _ordered(x: Tensor, order: Tensor | None) -> Tensor:
        # take_along_dim would be recompiled for every batch.
        return x if order is None else x.gather(1, order[..., None].expand(-1, -1, x.shape[-1]))


def padding(layer: str, x: Tensor, key_lengths: Any, key_padding_mask: Any) -> Padding | None:
    """The padding in x (batch, n, ...) by a layer's arguments; None without padding."""
    batch, n = x.shape[:2]
    if key_lengths is None and key_padding_mask is None:
        return None
    if key_padding_mask is None:
        return Padding(_arguments.key_lengths(layer, key_lengths, batch, n, x.device), n)
    if key_lengths is not None:
        raise ValueError(
            f"{layer}: key_lengths and key_padding_mask are both given; expected one of them"
        )
    _arguments.key_padding_mask(layer, key_padding_mask, batch, n)
    order = key_padding_mask.argsort(dim=1, stable=True)
    return Padding(n - key_padding_mask.sum(1), n, order)
