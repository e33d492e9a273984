"""Batches of sequences of unlike lengths, as every layer takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _check


class Padding:
    """Which tokens there are, and the way to sequences whose padding is at the end and back.

    Parameters
    ----------
    lengths : tensor, shape (batch,)
        How many tokens each sequence has.
    n : int
        The number of tokens, padding included.
    order : tensor, shape (batch, n), optional
        The tokens' places, padding last; None where they stand so.
    """

    def __init__(self, lengths: Tensor, n: int, order: Tensor | None = None) -> None:
        self.lengths, self._order = lengths, order
        #: (batch, n), True for tokens, once padding is at the end.
        self.there = torch.arange(n, device=lengths.device) < lengths[:, None]

    def strip(self, x: Tensor) -> Tensor:
        """x (batch, n, width) with all padding at the end, as zeros: NaN in it goes nowhere."""
        return torch.where(self.there[..., None], self._ordered(x, self._order), 0)

    def restore(self, x: Tensor) -> Tensor:
        """`strip` undone, but for the zeros."""
        x = torch.where(self.there[..., None], x, 0)
        return x if self._order is None else self._ordered(x, self._order.argsort(dim=1))

    @staticmethod
    def _ordered(x: Tensor, order: Tensor | None) -> Tensor:
        # take_along_dim would be compiled anew for every batch.
        return x if order is None else x.gather(1, order[..., None].expand(-1, -1, x.shape[-1]))


def padding(layer: str, x: Tensor, key_lengths: Any, key_padding_mask: Any) -> Padding | None:
    """What the arguments of a layer say of x (batch, n, ...); None where all are tokens."""
    batch, n = x.shape[:2]
    if key_lengths is None and key_padding_mask is None:
        return None
    if key_padding_mask is None:
        return Padding(_check.key_lengths(layer, key_lengths, batch, n, x.device), n)
    if key_lengths is not None:
        raise ValueError(
            f"{layer}: key_lengths and key_padding_mask are both given; expected one of them"
        )
    _check.key_padding_mask(layer, key_padding_mask, batch, n)
    order = key_padding_mask.argsort(dim=1, stable=True)
    return Padding(n - key_padding_mask.sum(1), n, order)
