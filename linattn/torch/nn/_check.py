"""What layers refuse, with messages that name the layer, the argument and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...feature_maps._base import integer as integer
from ...feature_maps._base import positive as positive


def multiple(layer: str, of: tuple[str, int], by: tuple[str, int]) -> int:
    """How often the second number is in the first; both come with their names."""
    for name, x in (of, by):
        integer(layer, name, x)
    if of[1] % by[1]:
        raise ValueError(
            f"{layer}: {of[0]} is {of[1]}; expected a multiple of {by[0]}, which is {by[1]}"
        )
    return of[1] // by[1]


def probability(layer: str, name: str, x: Any) -> float:
    """x as a number from 0 to 1."""
    if positive(layer, name, x, zero=True) > 1:
        raise ValueError(f"{layer}: {name} is {x}; expected a number from 0 to 1")
    return float(x)


def tokens(layer: str, x: Any, width: int) -> None:
    """Refuses all but a tensor (batch, tokens, width)."""
    _shape(layer, x, 3, f"(batch, tokens, {width})", width)


def token(layer: str, x: Any, width: int) -> None:
    """Refuses all but a tensor (batch, width)."""
    _shape(f"{layer}.step", x, 2, f"(batch, {width}), one token", width)


def _shape(layer: str, x: Any, axes: int, expected: str, width: int) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer}: x is a {type(x).__name__}; expected a tensor {expected}")
    if x.ndim != axes or x.shape[-1] != width:
        raise ValueError(f"{layer}: x has shape {tuple(x.shape)}; expected {expected}")


def state(layer: str, x: Any, kind: type[tuple[Any, ...]], batch: int) -> None:
    """Refuses all but a state of that kind, of so many sequences.

    All tensors of a state begin with that axis, and each kind has one of its own.
    """
    if not isinstance(x, kind):
        raise TypeError(
            f"{layer}: state is a {type(x).__name__}; expected a {kind.__name__}, from init_state "
            "or an earlier call"
        )
    given = next(len(field) for field in x if isinstance(field, Tensor))
    if given != batch:
        raise ValueError(f"{layer}: state is of {given} sequences; expected {batch}, as x has")


def key_lengths(layer: str, x: Any, batch: int, n: int, device: torch.device) -> Tensor:
    """Lengths as a tensor (batch,), from 0 to n."""
    if isinstance(x, Sequence):
        x = torch.as_tensor(x, device=device)
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer}: key_lengths is a {type(x).__name__}; expected a tensor")
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise TypeError(f"{layer}: key_lengths has dtype {x.dtype}; expected integers")
    if x.shape != (batch,):
        raise ValueError(
            f"{layer}: key_lengths has shape {tuple(x.shape)}; expected ({batch},), one a sequence"
        )
    if not torch.compiler.is_compiling() and x.numel() and (x.min() < 0 or x.max() > n):
        raise ValueError(
            f"{layer}: key_lengths has values from {x.min()} to {x.max()}; expected 0 to {n}, "
            "the number of tokens"
        )
    return x


def key_padding_mask(layer: str, x: Any, batch: int, n: int) -> None:
    """Refuses all but a tensor (batch, n) of bools."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer}: key_padding_mask is a {type(x).__name__}; expected a tensor")
    if x.dtype is not torch.bool:
        raise TypeError(
            f"{layer}: key_padding_mask has dtype {x.dtype}; expected bool, True for padding"
        )
    if x.shape != (batch, n):
        raise ValueError(
            f"{layer}: key_padding_mask has shape {tuple(x.shape)}; expected ({batch}, {n}), "
            "(batch, tokens)"
        )
