"""Threads, instruction set, and what this build is made of."""

from __future__ import annotations

import operator
import os
import sys
from contextlib import ContextDecorator
from typing import Any

import numpy as np

import linattn._linattn as _linattn  # not from the package, which imports this module

from .._version import __version__
from .control_groups import cpu_quota
from .product_dtype import get_products, set_products

MAX_THREADS = 1024  #: limit of the pool
MAX_SPIN_TIME = 100_000  #: microseconds
SPIN_TIME = 50  #: as long as it takes to wake a thread
AMX = ("off", "on", "in plain C", "in a signal handler")  #: by the choice of `_linattn.set_amx`
PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def get_num_threads() -> int:
    """The number of threads that a call may use.

    Returns
    -------
    int
        Initially the environment variable ``LINATTN_NUM_THREADS``, otherwise the first number of
        ``OMP_NUM_THREADS``, otherwise the number of CPUs that this process may run on, limited by
        the quota of its control group (1.5 CPUs count as 2).

    Examples
    --------
    >>> import linattn
    >>> linattn.get_num_threads() >= 1
    True
    """
    return _linattn.get_num_threads()


def set_num_threads(n: int) -> None:
    """Set the number of threads that a call may use.  Results do not depend on it.

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
    _linattn.set_num_threads(_in_range("set_num_threads: n", n, 1, MAX_THREADS))


def get_spin_time() -> int:
    """How long threads without work stay awake before they sleep, in microseconds.

    Returns
    -------
    int
        Initially the environment variable ``LINATTN_SPIN_TIME``; otherwise 50, or 0 if
        ``OMP_WAIT_POLICY`` is ``passive``.

    Examples
    --------
    >>> import linattn
    >>> linattn.get_spin_time() >= 0
    True
    """
    return _linattn.spin_time(-1)


def set_spin_time(us: int) -> None:
    """Set how long threads without work stay awake before they sleep.

    Parameters
    ----------
    us : int
        From 0, which lets them sleep at once, to 100,000 microseconds.

    Raises
    ------
    TypeError
        If ``us`` is not an integer.
    ValueError
        If it is out of range.

    Notes
    -----
    Waking a thread takes 10 to 50 microseconds, longer than a step of a few heads.  So threads
    stay awake for a short time, but not if other threads have taken their CPU since the last call
    (on Linux), nor if a call uses more threads than there are CPUs.  Those that wait for each
    other within a call stay awake for up to ten times as long.

    Takes negligible time and memory.

    Examples
    --------
    >>> import linattn
    >>> before = linattn.get_spin_time()
    >>> linattn.set_spin_time(0)
    >>> linattn.get_spin_time()
    0
    >>> linattn.set_spin_time(before)
    """
    _linattn.spin_time(_in_range("set_spin_time: us", us, 0, MAX_SPIN_TIME))


def _in_range(argument: str, x: Any, least: int, most: int) -> int:
    """``x`` as an integer from ``least`` to ``most``."""
    try:
        x = operator.index(x)
    except TypeError:
        raise TypeError(f"{argument} is {x!r}; expected an integer") from None
    if not least <= x <= most:
        raise ValueError(f"{argument} is {x}; expected {least} to {most}")
    return int(x)


def get_include() -> str:
    """The folder of ``linattn.h``, for compilers of extensions that call linattn from C.

    Returns
    -------
    str
        An absolute path.

    Notes
    -----
    Takes negligible time and memory.  ``linattn.h`` declares the operators for programs in C, C++
    and other languages, which call them without Python objects and without the GIL.

    Examples
    --------
    >>> import linattn, os
    >>> os.listdir(linattn.get_include())
    ['linattn.h']
    """
    return os.path.join(PACKAGE, "include")


def available_isas() -> tuple[str, ...]:
    """The instruction sets of this build that the CPU supports, best first."""
    return tuple(_linattn.available_isas())


def get_isa() -> str:
    """The instruction set in use.

    Returns
    -------
    str
        Initially the environment variable ``LINATTN_ISA``, otherwise the best that the CPU and the
        operating system support.

    Examples
    --------
    >>> import linattn
    >>> linattn.get_isa() in linattn._core.settings.available_isas()
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
        If this build or this CPU lacks the instruction set.

    Notes
    -----
    Results differ between instruction sets in their last bits.  Calls in progress in other
    threads finish with the set they started with.

    Examples
    --------
    >>> import linattn
    >>> linattn.set_isa(linattn.get_isa())
    """
    if not isinstance(name, str):
        raise TypeError(f"set_isa: name is {name!r}; expected a string")
    if name not in available_isas():  # C would stop at a NUL character
        known = ", ".join(available_isas())
        raise ValueError(f"set_isa: name is {name!r}; expected one of {known}")
    _linattn.set_isa(name)


class one_isa(ContextDecorator):
    """A context in which this thread's calls use one instruction set, whatever other threads set.

    The choice of products stays the same, too.

    Use it around several gufunc calls whose results have to be consistent, or as a decorator of
    a function that makes them.
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
        "products": get_products(),
        "AVX512-BF16": _linattn.has_bfloat16_products,
        "AMX-BF16": AMX[_linattn.get_amx()] if _linattn.has_amx else "not available",
        "threads": get_num_threads(),
        "compiler": _linattn.compiler,
        "numpy": np.__version__,
    }


def show_config() -> None:
    """Print the version, instruction set, products, threads, compiler and NumPy in use.

    Returns
    -------
    None

    Notes
    -----
    Takes negligible time and memory.  ``linattn info`` prints more, for bug reports.

    Examples
    --------
    >>> import linattn
    >>> linattn.show_config()  # doctest: +ELLIPSIS
            linattn: ...
    instruction set: ...
          available: ...
           products: ...
        AVX512-BF16: ...
           AMX-BF16: ...
            threads: ...
           compiler: ...
              numpy: ...
    """
    names = {
        "version": "linattn",
        "isa": "instruction set",
        "isas": "available",
        "products": "products",
        "AVX512-BF16": "AVX512-BF16",
        "AMX-BF16": "AMX-BF16",
        "threads": "threads",
        "compiler": "compiler",
        "numpy": "numpy",
    }
    for key, value in config().items():
        text = ", ".join(value) if isinstance(value, tuple) else value
        print(f"{names[key]:>15}: {text}")


#: Wrong environment variables, which the command `linattn` prints instead of failing on import.
problems: list[str] = []


def _read_environment() -> None:
    """Apply the environment variables of this module; a wrong value is an ImportError."""
    isa = os.environ.get("LINATTN_ISA")
    of_operands = os.environ.get("LINATTN_PRODUCTS")
    amx = os.environ.get("LINATTN_AMX")
    spin = os.environ.get("LINATTN_SPIN_TIME")
    threads = os.environ.get("LINATTN_NUM_THREADS")
    try:
        if isa:
            set_isa(isa)
    except ValueError as error:
        _refuse(f"environment variable LINATTN_ISA: {error}")
    try:
        if amx:
            _set_amx(amx)
    except ValueError as error:
        _refuse(f"environment variable LINATTN_AMX is {amx!r}: {error}")
    try:
        if of_operands:
            set_products(of_operands)
    except ValueError as error:
        _refuse(f"environment variable LINATTN_PRODUCTS: {error}")
    try:
        set_num_threads(int(threads) if threads else _default_threads())
    except ValueError:
        _refuse(
            f"environment variable LINATTN_NUM_THREADS is {threads!r}; expected 1 to {MAX_THREADS}"
        )
        set_num_threads(_default_threads())
    try:
        set_spin_time(int(spin) if spin else 0 if threads_wait_passively() else SPIN_TIME)
    except ValueError:
        _refuse(
            f"environment variable LINATTN_SPIN_TIME is {spin!r}; expected 0 to {MAX_SPIN_TIME}"
        )
        set_spin_time(SPIN_TIME)


def _set_amx(value: str) -> None:
    """Use AMX for products of bfloat16 operands, or not."""
    if value not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    _linattn.set_amx(int(value))


def threads_wait_passively() -> bool:
    """Whether OpenMP's variable asks threads without work to sleep at once."""
    return os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"


def _refuse(problem: str) -> None:
    if not _is_command():
        raise ImportError(problem) from None
    problems.append(problem)


def _is_command() -> bool:
    """Whether the process is ``linattn`` or ``python -m linattn``, which prints the problems."""
    if sys.argv[:1] == ["-m"]:  # argv while Python locates the package
        at = len(sys.orig_argv) - len(sys.argv)
        return sys.orig_argv[at : at + 1] == ["linattn"]
    return bool(sys.argv) and os.path.splitext(os.path.basename(sys.argv[0]))[0] == "linattn"


def _default_threads() -> int:
    """OMP_NUM_THREADS, which joblib, Dask and torchrun set to share CPUs; else the CPUs."""
    by_level = os.environ.get("OMP_NUM_THREADS", "").split(",")  # one number per level of nesting
    try:
        threads = int(by_level[0])
    except ValueError:
        threads = 0
    if threads < 1:  # treated as unset
        threads = min(get_num_threads(), cpu_quota() or MAX_THREADS)  # initially the CPU affinity
    return min(threads, MAX_THREADS)


def _register_threadpoolctl() -> None:
    """Let threadpoolctl, if it is installed, see and limit this pool."""
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
