"""The CPU quota of the process, as containers set it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import product


def cpu_quota(root: str | os.PathLike[str] = "/") -> int | None:
    """The CPU quota of the process's control groups, rounded up; None without one.

    ``root`` is the folder with /proc and /sys.
    """
    try:
        lines = _read(root, "proc/self/cgroup").splitlines()
    except (OSError, ValueError):
        return None
    quotas = []
    for controllers, path in (x.split(":", 2)[1:] for x in lines if x.count(":") > 1):
        if not controllers:  # version 2
            mounts: tuple[str, ...] = ("", "unified")
            files: tuple[str, ...] = ("cpu.max",)
        elif "cpu" in controllers.split(","):
            mounts, files = ("cpu", controllers), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        for mount, group in product(mounts, _and_parents(path.strip("/"))):
            quotas.append(_quota(os.path.join(root, "sys/fs/cgroup", mount, group), files))
    return min((math.ceil(x) for x in quotas if x is not None), default=None)


def _and_parents(group: str) -> Iterator[str]:
    """A group's folders; a container may see its own group as the root of the mount."""
    while group:
        yield group
        group = os.path.dirname(group)
    yield ""


def _quota(folder: str, files: tuple[str, ...]) -> float | None:
    """CPU time per period, divided by the period."""
    try:
        text = " ".join(_read(folder, name) for name in files)
        quota, period = map(int, text.split())
    except (OSError, ValueError):  # no quota is "max" in version 2
        return None
    return quota / period if quota > 0 and period > 0 else None  # no quota is -1 in version 1


def _read(folder: str | os.PathLike[str], file: str) -> str:
    with open(os.path.join(folder, file), encoding="utf-8") as opened:
        return opened.read()
