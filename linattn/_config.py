"""Threads, instruction set, and what this build is made of."""

from __future__ import annotations

import math
import operator
import os
import sys
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from . import _linattn
from ._version import __version__

MAX_THREADS = 1024  #: what the pool takes


def get_num_threads() -> int:
    """How many threads a call may use.

    Returns
    -------
    int
        At first the environment variable ``LINATTN_NUM_THREADS``; else ``OMP_NUM_THREADS``,
        its first number; else the number of CPUs that this process may run on and that its
        control group's quota pays for (1.5 CPUs count as 2).

    Examples
    --------
    >>> import linattn
    >>> linattn.get_num_threads() >= 1
    True
    """
    return _linattn.get_num_threads()


def set_num_threads(n: int) -> None:
    """Set how many threads a call may use.  Results do not depend on it.

    Parameters
    ----------
    n : int
        From 1 to 1024.

    Raises
    ------
    TypeError
        If ``n`` is not an integer.
    ValueError
        If it is out of range.

    Examples
    --------
    >>> import linattn
    >>> before = linattn.get_num_threads()
    >>> linattn.set_num_threads(1)
    >>> linattn.get_num_threads()
    1
    >>> linattn.set_num_threads(before)
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"set_num_threads: n is {n!r}; expected an integer") from None
    try:
        _linattn.set_num_threads(n)
    except (ValueError, OverflowError):
        raise ValueError(f"set_num_threads: n is {n}; expected 1 to 1024") from None


def available_isas() -> tuple[str, ...]:
    """The instruction sets built in and usable on this CPU, best first."""
    return tuple(_linattn.available_isas())


def get_isa() -> str:
    """The instruction set in use.

    Returns
    -------
    str
        At first the value of the environment variable ``LINATTN_ISA``, or the best that
        CPU and operating system support.

    Examples
    --------
    >>> import linattn
    >>> linattn.get_isa() in linattn._config.available_isas()
    True
    """
    return _linattn.get_isa()


def set_isa(name: str) -> None:
    """Use another instruction set, for tests and comparisons.

    Parameters
    ----------
    name : str
        ``"x86-64-v2"``, ``"x86-64-v3"`` or ``"x86-64-v4"``; on Arm ``"neon"``.

    Raises
    ------
    TypeError
        If ``name`` is not a string.
    ValueError
        If that instruction set was not built, or this CPU lacks it.

    Notes
    -----
    Results differ between instruction sets in their last bits.  Calls under way in other
    threads finish with the set they began with.

    Examples
    --------
    >>> import linattn
    >>> linattn.set_isa(linattn.get_isa())
    """
    if not isinstance(name, str):
        raise TypeError(f"set_isa: name is {name!r}; expected a string")
    if name not in available_isas():  # C would read no further than a NUL
        known = ", ".join(available_isas())
        raise ValueError(f"set_isa: name is {name!r}; expected one of {known}")
    _linattn.set_isa(name)


class one_isa:
    """A context in which this thread's calls use one instruction set, whatever others set.

    For what takes several gufuncs: their results have to fit together.
    """

    def __enter__(self) -> None:
        _linattn.hold_isa()

    def __exit__(self, *exception: object) -> None:
        _linattn.release_isa()


def config() -> dict[str, Any]:
    """What `show_config` prints, as a dictionary."""
    return {
        "version": __version__,
        "isa": get_isa(),
        "isas": available_isas(),
        "threads": get_num_threads(),
        "compiler": _linattn.compiler,
        "numpy": np.__version__,
    }


def show_config() -> None:
    """Print the version, instruction set, threads, compiler and NumPy in use.

    Returns
    -------
    None

    Notes
    -----
    No time and no memory to speak of.  ``linattn info`` tells more, for a report of a fault.

    Examples
    --------
    >>> import linattn
    >>> linattn.show_config()  # doctest: +ELLIPSIS
            linattn: ...
    instruction set: ...
          available: ...
            threads: ...
           compiler: ...
              numpy: ...
    """
    names = {
        "version": "linattn",
        "isa": "instruction set",
        "isas": "available",
        "threads": "threads",
        "compiler": "compiler",
        "numpy": "numpy",
    }
    for key, value in config().items():
        text = ", ".join(value) if isinstance(value, tuple) else value
        print(f"{names[key]:>15}: {text}")


#: What is wrong in the environment, where the command `linattn` went on to tell of it.
problems: list[str] = []


def _read_environment() -> None:
    """Apply LINATTN_ISA and the number of threads; a wrong value of ours is an ImportError."""
    isa = os.environ.get("LINATTN_ISA")
    threads = os.environ.get("LINATTN_NUM_THREADS")
    try:
        if isa:
            set_isa(isa)
    except ValueError as error:
        _refuse(f"environment variable LINATTN_ISA: {error}")
    try:
        set_num_threads(int(threads) if threads else _default_threads())
    except ValueError:
        _refuse(f"environment variable LINATTN_NUM_THREADS is {threads!r}; expected 1 to 1024")
        set_num_threads(_default_threads())


def _refuse(problem: str) -> None:
    if not _is_command():
        raise ImportError(problem) from None
    problems.append(problem)


def _is_command() -> bool:
    """Whether the process is ``linattn`` or ``python -m linattn``, which tells in a line."""
    if sys.argv[:1] == ["-m"]:  # as argv is while Python finds the package
        at = len(sys.orig_argv) - len(sys.argv)
        return sys.orig_argv[at : at + 1] == ["linattn"]
    return bool(sys.argv) and Path(sys.argv[0]).stem == "linattn"


def _default_threads() -> int:
    """OMP_NUM_THREADS, by which joblib, Dask and torchrun share out CPUs; else the CPUs."""
    by_level = os.environ.get("OMP_NUM_THREADS", "").split(",")  # of nested regions
    try:
        threads = int(by_level[0])
    except ValueError:
        threads = 0
    if threads < 1:  # as good as none
        threads = min(get_num_threads(), cpu_quota() or MAX_THREADS)  # by affinity, at first
    return min(threads, MAX_THREADS)


def cpu_quota(root: Path = Path("/")) -> int | None:
    """CPUs that the process's control groups pay for, rounded up; None where none has a quota.

    ``root`` is where /proc and /sys are.
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
    """Microseconds of CPU time a period, over those of the period."""
    try:
        text = " ".join((folder / name).read_text() for name in files)
        quota, period = map(int, text.split())
    except (OSError, ValueError):  # without a quota, "max" in version 2
        return None
    return quota / period if quota > 0 and period > 0 else None  # and -1 in version 1


def _register_threadpoolctl() -> None:
    """Let threadpoolctl, where it is installed, see and limit this pool."""
    try:
        import threadpoolctl
    except ImportError:
        return

    class LinattnController(threadpoolctl.LibController):  # type: ignore[misc]  # it has no types
        user_api = "linattn"
        internal_api = "linattn"
        filename_prefixes = ("_linattn",)
        check_symbols = ("linattn_get_num_threads", "linattn_set_num_threads")

        def get_num_threads(self) -> Any:
            return self.dynlib.linattn_get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.linattn_set_num_threads(num_threads)

        def get_version(self) -> str:
            return __version__

        def set_additional_attributes(self) -> None:
            self.isa = get_isa()

    threadpoolctl.register(LinattnController)


_read_environment()
_register_threadpoolctl()
