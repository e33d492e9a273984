"""The memory that a call takes, as Python counts it, and that of the process."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any


def traced(call: Callable[[], Any]) -> tuple[int, Any]:
    """The most bytes that Python's and NumPy's objects of a second call have, and its result."""
    call()
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def peak() -> int:
    """The most bytes that this process has had so far.

    getrusage counts those of the process that started it, too, where Linux has better.
    """
    import resource  # which Windows has not

    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM:")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
