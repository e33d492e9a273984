"""Docstrings of functions of tensors, from those of the NumPy functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .. import _bridge_docs

F = TypeVar("F", bound=Callable[..., Any])

WORDS = {
    "an array": "a tensor",
    "array_like": "tensor",
    "ndarray": "tensor",
    "array": "tensor",
    "complex, masked, or not": "complex or not",
}
_TENSORS = _bridge_docs.Bridge(WORDS)


def like(function: Callable[..., Any]) -> Callable[[F], F]:
    """Gives f the docstring of a NumPy function, with tensors for arrays."""
    return _bridge_docs.like(function, _TENSORS)
