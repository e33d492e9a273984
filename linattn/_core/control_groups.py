"""The CPU quota of the process, as containers set it."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path, PurePosixPath


def cpu_quota(root: Path = Path("/")) -> int | None:
    """The CPU quota of the process's control groups, rounded up; None without one.

    ``root`` is the folder with /proc and /sys.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
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
        group = PurePosixPath(path.lstrip("/"))
        # A container may see its own group as the root of the mount.
        for mount, folder in product(mounts, (group, *group.parents)):
            quotas.append(_quota(root / "sys/fs/cgroup" / mount / folder, files))
    return min((math.ceil(x) for x in quotas if x is not None), default=None)


def _quota(folder: Path, files: tuple[str, ...]) -> float | None:
    """CPU time per period, divided by the period."""
    try:
        text = " ".join((folder / name).read_text() for name in files)
        quota, period = map(int, text.split())
    except (OSError, ValueError):  # no quota is "max" in version 2
        return None
    return quota / period if quota > 0 and period > 0 else None  # no quota is -1 in version 1
