"""Bounds of packed sequences, from masks of padding and for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

#: The functions of ``fla.ops.utils.index``, and those of ``fla.layers.utils``.
OF_INDEX = (
    "prepare_cu_seqlens_from_lens", "prepare_cu_seqlens_from_mask", "prepare_lens",
    "prepare_lens_from_mask", "prepare_position_ids", "prepare_sequence_ids",
    "prepare_token_indices",
)  # fmt: skip
OF_LAYERS = ("get_unpad_data", "index_first_axis", "index_put_first_axis", "pad_input")


def tensor_cache(fn: Function) -> Function:
    """fla's decorator, which keeps the last results; here the function is called each time."""
    return fn


def prepare_lens(cu_seqlens: Tensor) -> Tensor:
    """The lengths [N] of sequences with the bounds cu_seqlens [N + 1]."""
    return cu_seqlens.diff()


def prepare_lens_from_mask(mask: Tensor) -> Tensor:
    """The number of tokens of each row of a mask [N, T], in which 0 is padding."""
    return mask.sum(-1, dtype=torch.int32)


def prepare_cu_seqlens_from_lens(lens: Tensor, dtype: torch.dtype | None = torch.int32) -> Tensor:
    """The bounds [N + 1] of sequences with the lengths [N]."""
    return F.pad(lens.cumsum(0, dtype=dtype), (1, 0))


def prepare_cu_seqlens_from_mask(mask: Tensor, dtype: torch.dtype | None = torch.int32) -> Tensor:
    """The bounds [N + 1] of the tokens of each row of a mask [N, T]."""
    return prepare_cu_seqlens_from_lens(prepare_lens_from_mask(mask), dtype)


def prepare_sequence_ids(cu_seqlens: Tensor, cu_seqlens_cpu: Tensor | None = None) -> Tensor:
    """The number of the sequence of each token, from 0, without the empty ones."""
    lengths = prepare_lens(cu_seqlens)
    full = lengths[lengths > 0]
    return torch.arange(len(full)).repeat_interleave(full.long())


def prepare_position_ids(cu_seqlens: Tensor, cu_seqlens_cpu: Tensor | None = None) -> Tensor:
    """The position of each token in its sequence, from 0."""
    first = cu_seqlens[:-1].repeat_interleave(prepare_lens(cu_seqlens).long())
    return torch.arange(len(first)).to(cu_seqlens) - first


def prepare_token_indices(cu_seqlens: Tensor, cu_seqlens_cpu: Tensor | None = None) -> Tensor:
    """The sequence and the position of each token, [T, 2]."""
    ids = prepare_sequence_ids(cu_seqlens), prepare_position_ids(cu_seqlens)
    return torch.stack(ids, 1).to(cu_seqlens)


def get_unpad_data(attention_mask: Tensor) -> tuple[Tensor, Tensor, int]:
    """The places of tokens in a flat mask [N, T], their bounds, and the longest length."""
    lengths = prepare_lens_from_mask(attention_mask)
    places = attention_mask.flatten().nonzero().flatten()
    return places, prepare_cu_seqlens_from_lens(lengths), int(lengths.max())


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """x at these indices of its first axis."""
    return x[indices.long()]


def index_put_first_axis(x: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros, with x at these indices of the first axis."""
    return x.new_zeros(first_axis_dim, *x.shape[1:]).index_copy(0, indices.long(), x)


def pad_input(hidden_states: Tensor, indices: Tensor, batch_size: int, seq_len: int) -> Tensor:
    """Tokens at these places of a flat batch, as [batch_size, seq_len, ...]."""
    flat = index_put_first_axis(hidden_states, indices, batch_size * seq_len)
    return flat.unflatten(0, (batch_size, seq_len))
