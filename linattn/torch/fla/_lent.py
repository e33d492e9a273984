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
    held = isinstance(cached, dict) and is_held_once(cached, "recurrent_state")
    _lent.state = cached["recurrent_state"] if held else None


def take(x: Tensor | None) -> bool:
    """Whether x was lent, which ends the loan."""
    lent = getattr(_lent, "state", None)
    if lent is None:
        return False
    _lent.state = None
    return lent is x


def is_held_once(place: Any, key: Any) -> bool:
    """Whether place[key] is a tensor that is nowhere else, with its memory."""
    return EXACT and type(place[key]) is Tensor and _references(place, key) == _ONCE


def _references(place: Any, key: Any) -> tuple[int, ...]:
    """How many there are to the tensor, in Python and in C++, and to its memory.

    The tensor is an argument of no Python function here: whether its caller keeps a reference
    during the call depends on the interpreter, and on who watches it.  Dynamo does, now and then.
    """
    storage = place[key].untyped_storage()
    memory = torch._C._storage_Use_Count(storage._cdata)
    tensors: int = place[key]._use_count()
    return sys.getrefcount(place[key]), tensors, sys.getrefcount(storage), memory


_ONCE = _references([torch.zeros(1)], 0)
#: Whether this interpreter counts references exactly: free-threaded ones do not.
EXACT = getattr(sys, "_is_gil_enabled", lambda: True)()
