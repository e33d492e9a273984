"""Docstrings of functions of tensors, from those of the NumPy functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_ARRAY = re.compile(r"\b(array_like|ndarray|array)(s?)\b")


def like(function: Callable[..., Any]) -> Callable[[F], F]:
    """Gives f the docstring of a NumPy function, with tensors for arrays and f's own example."""

    def decorate(f: F) -> F:
        if f.__doc__ is None or function.__doc__ is None:  # python -OO
            return f
        text, _, _ = function.__doc__.partition("    Examples\n    --------\n")
        text = re.sub(r"    out : .*\n(?:        .*\n)*", "", text)
        text = _ARRAY.sub(r"tensor\2", text)
        head, rule, rest = text.partition("    Parameters\n    ----------\n")
        note = f"    `linattn.{function.__name__}` on CPU tensors, differentiable.\n\n"
        example = f.__doc__.lstrip().removeprefix("Example.").strip("\n ")
        f.__doc__ = f"{head}{note}{rule}{rest}    Examples\n    --------\n    {example}\n    "
        return f

    return decorate
