"""The sources of functions of Transformers, by which linattn knows what it replaces."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any


def digest(function: Callable[..., Any]) -> str:
    """SHA-256 of a function's source, within the library's own decorators.

    A function that another program has wrapped is that program's.  OSError without a source,
    TypeError if it is no function of Python's.
    """
    while _is_of_library(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if not isinstance(function, FunctionType):
        raise TypeError(f"{function!r} is not a function")
    return hashlib.sha256(inspect.getsource(function.__code__).encode()).hexdigest()


def _is_of_library(function: Callable[..., Any]) -> bool:
    place = getattr(function, "__globals__", {}).get("__name__", "")
    return place.partition(".")[0] == "transformers"
