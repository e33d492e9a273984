"""Sequences packed in rows, as ``seq_idx`` numbers them for mamba_ssm and causal_conv1d.

Rows are laid one after another in a single one, whose sequences `Packing.bounds` separate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.checks import wrong_shape


class Packing(NamedTuple):
    """The sequences of ``batch`` rows of ``n`` tokens, laid one after another."""

    bounds: Tensor  #: (r + 1,), as cu_seqlens
    first: Tensor  #: (batch,), the first sequence of each row
    last: Tensor  #: (batch,), the last one


def packing(function: str, seq_idx: Any, batch: int, n: int) -> Packing | None:
    """The sequences that seq_idx (batch, n) numbers: runs of equal numbers; None for no tokens."""
    if not isinstance(seq_idx, Tensor):
        raise TypeError(f"{function}: seq_idx is a {type(seq_idx).__name__}; expected a tensor")
    if seq_idx.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{function}: seq_idx has dtype {seq_idx.dtype}; expected int32")
    if seq_idx.shape != (batch, n):
        raise wrong_shape(function, "seq_idx", seq_idx, f"{(batch, n)}, (batch, seqlen)")
    if not batch * n:
        return None
    begins = torch.ones_like(seq_idx, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    row, column = begins.nonzero().unbind(1)
    _check_once(function, row, seq_idx[row, column])
    bounds = torch.cat([row * n + column, row.new_tensor([batch * n])])
    first = torch.searchsorted(row, torch.arange(batch, device=row.device))
    last = torch.cat([first[1:], row.new_tensor([len(row)])]) - 1
    return Packing(bounds, first, last)


def _check_once(function: str, row: Tensor, number: Tensor) -> None:
    """Raise ValueError if a sequence goes on after another one has begun; padding may."""
    pairs = torch.stack([row, number])[:, number >= 0]
    unique, counts = torch.unique(pairs, dim=1, return_counts=True)
    if unique.shape[1] < pairs.shape[1]:
        found = unique[:, counts > 1][1, 0]
        raise ValueError(
            f"{function}: seq_idx is {found} in two separate places of a row; expected the tokens "
            "of a sequence one after another"
        )


def at_first(states: Tensor, packed: Packing) -> Tensor:
    """States (batch, ...) of the rows as those of all sequences, (r, ...): zeros but the first."""
    zeros = states.new_zeros(len(packed.bounds) - 1, *states.shape[1:])
    return zeros.index_copy(0, packed.first, states)


def bounds_of(seq_idx: Tensor) -> Tensor:
    """The bounds of the sequences that seq_idx numbers in a single row, without a check."""
    index = seq_idx.reshape(-1)
    begin = (index[1:] != index[:-1]).nonzero()[:, 0] + 1
    return torch.cat([begin.new_zeros(1), begin, begin.new_tensor([len(index)])])


def numbers(bounds: Tensor, n: int) -> Tensor:
    """The sequence of each of n tokens."""
    return torch.searchsorted(bounds[1:].long(), torch.arange(n), right=True)


def numbered(function: str, cu_seq_lens_q: Tensor, batch: int, n: int) -> Tensor:
    """seq_idx (1, n) of the sequences with these bounds, which are those of the only row."""
    if batch != 1:
        raise ValueError(f"{function}: cu_seq_lens_q is given for {batch} rows; expected one row")
    return numbers(cu_seq_lens_q, n)[None]
