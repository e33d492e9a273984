"""Available memory, and the memory that a call takes, for the timing command and benchmarks."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def available() -> int | None:
    """The bytes that can be allocated without swapping; None if the system does not tell."""
    limits = [_meminfo("MemAvailable"), _cgroup()]
    known = [limit for limit in limits if limit is not None]
    if known:
        return min(known)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def peak(call: Callable[[], Any]) -> tuple[Any, int | None]:
    """The result of ``call()`` and the bytes by which it raised the process's resident memory.

    These include the result.  They are None if the system cannot reset its high-water mark, as
    Linux can.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # pages kept from an earlier call would hide new ones
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except OSError:
        return call(), None
    result = call()
    return result, max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _meminfo(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith(field + ":")), None)


def _cgroup() -> int | None:
    """The bytes left by a container's own limit, which may be less than the machine has."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = int((root / "memory.max").read_text())
        return max(0, limit - int((root / "memory.current").read_text()))
    except (OSError, ValueError):  # without a limit the file says "max"
        return None
