"""The library of faults.c, in a process that was started with it."""

from __future__ import annotations

import ctypes
import os
import sys

shim = ctypes.CDLL(None)
shim.faults_arm.argtypes = [ctypes.c_long, ctypes.c_int]
shim.faults_cpus.argtypes = [ctypes.c_long]
shim.faults_range.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
shim.faults_disarm.restype = shim.faults_held.restype = ctypes.c_long


def find_code() -> None:
    """Tell the library the addresses of the extension's and Python's code."""
    if (3, 12) <= sys.version_info < (3, 14):
        # Without memory for a function they release its code twice (python/cpython#122752).
        shim.faults_spare_functions()
    for of_python, name in enumerate(("/_linattn", "/libpython", os.path.realpath(sys.executable))):
        with open("/proc/self/maps") as maps:
            ends = [line.split()[0].split("-") for line in maps if name in line]
        if ends:
            shim.faults_range(of_python > 0, int(ends[0][0], 16), int(ends[-1][1], 16))
        if of_python and ends:
            break
