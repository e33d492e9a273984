"""Short calls on PyTorch's own threads: those of its OpenMP runtime.

After one of PyTorch's operators, its threads stay awake for a while, on the processors that the
threads of linattn's pool would need.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from ... import _linattn
from ..._core.settings import threads_wait_passively


def openmp() -> int:
    """The address of GOMP_parallel in the OpenMP runtime that PyTorch has loaded; 0 without one."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    for library in (*libraries, "libgomp.so.1"):
        try:  # only if it is loaded
            runtime = ctypes.CDLL(str(library), os.RTLD_NOW | os.RTLD_NOLOAD)
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


def install() -> None:
    """Let short calls run there, in NumPy too.  After a fork, the child's do not."""
    if not threads_wait_passively():
        _linattn.set_runner(openmp())
