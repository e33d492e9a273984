"""Checks of options, before an operator of PyTorch takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._core.checks import flag, real


def integers(name: str, argument: str, x: Any, like: Any) -> Tensor:
    """A tensor of integers; one made of a list is on the device of ``like``."""
    if not isinstance(x, Tensor):
        dtype = torch.int64 if isinstance(x, (list, tuple)) and not x else None
        device = like.device if isinstance(like, Tensor) else None
        try:
            x = torch.as_tensor(x, dtype=dtype, device=device)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{name}: {argument} is {x!r}; expected integers") from None
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise TypeError(f"{name}: {argument} has dtype {x.dtype}; expected integers")
    return x


def state_indices(name: str, x: Any, like: Any) -> Tensor:
    """The rows of a pool, of the only dtype that all of PyTorch's functions of rows take."""
    return integers(name, "state_indices", x, like).long()


def check_of(argument: str) -> tuple[type, Callable[[str, str, Any], Any]]:
    """The type that an option of a schema needs no check of, and the check of others.

    It is called (function, name, value), and returns what the operator takes.
    """
    return _CHECKS.get(argument.split()[0], (str, _unchecked))


def _maybe_real(name: str, argument: str, x: Any) -> float | None:
    return None if x is None else real(name, argument, x)


def _unchecked(name: str, argument: str, x: Any) -> Any:
    return x


_CHECKS: dict[str, tuple[type, Callable[[str, str, Any], Any]]] = {
    "float": (float, real), "float?": (float, _maybe_real), "bool": (bool, flag),
}  # fmt: skip
