"""States of fla's caches that a step may overwrite, as nobody else can see them.

fla's functions return new states, which replace the old ones in a cache.  A layer lends the state
that it takes from its cache, and the step that the layer then calls writes to it, if the cache has
the only reference to the tensor and to its memory.  A state that is also in another cache, or that
you keep to go back to, stays as it is: the step returns a new one.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch import Tensor

_lent = threading.local()


def lend(cached: Any) -> None:
    """Lend the recurrent state of a layer's cache to the next step of this thread."""
    _lent.state = None
    x = cached["recurrent_state"] if isinstance(cached, dict) else None
    if is_held_once(x):
        _lent.state = x


def take(x: Tensor | None) -> bool:
    """Whether x was lent, which ends the loan."""
    lent = getattr(_lent, "state", None)
    if lent is None:
        return False
    _lent.state = None
    return lent is x


def is_held_once(x: Any) -> bool:
    """Whether x, but for a local variable of the caller, is in one place only, with its memory."""
    return EXACT and type(x) is Tensor and _references(x) == _ONCE


def _references(x: Tensor) -> tuple[int, ...]:
    """How many there are to the tensor, in Python and in C++, and to its memory."""
    storage = x.untyped_storage()
    memory = torch._C._storage_Use_Count(storage._cdata)
    tensors: int = x._use_count()  # type: ignore[attr-defined]
    return sys.getrefcount(x), tensors, sys.getrefcount(storage), memory


def _held_once() -> tuple[int, ...]:
    """The references to a tensor of which `is_held_once` is true."""

    def as_there(x: Any) -> tuple[int, ...]:
        return _references(x)

    place = [torch.zeros(1)]
    x = place[0]
    return as_there(x)


_ONCE = _held_once()
#: Whether this interpreter counts references exactly: free-threaded ones do not.
EXACT = getattr(sys, "_is_gil_enabled", lambda: True)()
