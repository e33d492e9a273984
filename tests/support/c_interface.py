"""The C interface through ctypes, which releases the GIL: linattn.h, written a second time."""

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_ssize_t,
    c_void_p,
)

import numpy as np

from linattn import _linattn

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

LEFT_OUT, NUMBER = 0, 8
DTYPES = {
    np.dtype(np.float16): 1,
    np.dtype(np.float32): 3,
    np.dtype(np.float64): 4,
    np.dtype(np.complex64): 5,
    np.dtype(np.complex128): 6,
    np.dtype(np.intp): 7,
} | ({} if bfloat16 is None else {np.dtype(bfloat16): 2})  # fmt: skip
STATUS = (
    "OK", "NO_MEMORY", "BAD_OPERATOR", "BAD_COUNT", "BAD_THREADS", "MISSING", "BAD_DTYPE",
    "BAD_SHAPE", "BAD_POINTER", "BAD_ALIGNMENT", "OVERLAP", "SHARED_TOKENS", "FAILED",
)  # fmt: skip
MAX_NDIM = 32


class Array(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p), ("dtype", c_int), ("ndim", c_int), ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)), ("number", c_double),
    )  # fmt: skip


class Operand(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p), ("dims", c_char * 12), ("is_output", c_int), ("is_number", c_int),
        ("may_lack", c_int),
    )  # fmt: skip


class Api(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t), ("major", c_int), ("minor", c_int),
        ("count", CFUNCTYPE(c_int)), ("name", CFUNCTYPE(c_char_p, c_int)),
        ("find", CFUNCTYPE(c_int, c_char_p)), ("operands", CFUNCTYPE(c_int, c_int)),
        ("place", CFUNCTYPE(c_int, c_int, c_char_p)),
        ("operand", CFUNCTYPE(c_int, c_int, c_int, POINTER(Operand))),
        ("dtype", CFUNCTYPE(c_int, c_int, c_int, c_int)),
        ("call", CFUNCTYPE(c_int, c_int, POINTER(Array), c_int, c_int)),
        ("status_text", CFUNCTYPE(c_char_p, c_int)),
    )  # fmt: skip


def load():
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    return Api.from_address(address(_linattn._C_API, b"linattn._linattn._C_API"))


API = load()


def integers(values):
    return (c_ssize_t * max(len(values), 1))(*values)


def array(x):
    """An operand: an array, a number, or None if it is left out.  It does not keep the array."""
    if x is None:
        return Array()
    if isinstance(x, float):
        return Array(dtype=NUMBER, number=x)
    return Array(
        data=x.ctypes.data, dtype=DTYPES[x.dtype], ndim=x.ndim, shape=integers(x.shape),
        strides=integers(x.strides),
    )  # fmt: skip


def describe(name):
    """The operands of an operator: (name, dims, is_output, is_number, may_lack) of each."""
    op, x = API.find(name.encode()), Operand()
    assert op >= 0, name
    found = []
    for place in range(API.operands(op)):
        assert API.operand(op, place, x) == 0
        text = x.name.decode(), x.dims.decode()
        found.append((*text, bool(x.is_output), bool(x.is_number), bool(x.may_lack)))
    return found


def status(name, operands, threads=0):
    """Call an operator on operands of `array`; return the name of the status."""
    given = (Array * len(operands))(*operands)
    return STATUS[API.call(API.find(name.encode()), given, len(operands), threads)]


def call(name, *operands, threads=0):
    """Call an operator with arrays, numbers and None; return the name of the status."""
    return status(name, [array(x) for x in operands], threads)


def families():
    """Operators whose names differ in the map, MAP, as lines: name, operands and results."""
    maps = {*_linattn.maps}
    found = {}
    for op in range(API.count()):
        name = API.name(op).decode()
        operands = describe(name)
        sides = [], []
        for x, dims, is_output, is_number, may_lack in operands:
            own = "" if is_number else f"({dims})"
            sides[is_output].append(x + own + "?" * may_lack)
        family = "_".join("MAP" if part in maps else part for part in name.split("_"))
        line = f"{family}: {', '.join(sides[0])} -> {', '.join(sides[1])}"
        found.setdefault(line, []).append(name)
    return found


#: Sizes of operands.
SIZES = {"n": 7, "s": 9, "d": 4, "m": 6, "f": 5, "r": 2, "g": 4, "h": 3}


def make(name, rng, dtype=np.float32, lead=(2, 3), **sizes):
    """Operands of a call: inputs, and outputs to be written to, both in the operator's order."""
    sizes = SIZES | sizes
    n, r = sizes["n"], sizes["r"]
    first = DTYPES[np.dtype(dtype)]
    by_number = {number: x for x, number in DTYPES.items()}
    inputs, outputs = [], []
    for place, (x, dims, is_output, is_number, _) in enumerate(describe(name)):
        shape = (*lead, *(sizes[letter] for letter in dims.split(",") if letter))
        own = by_number[API.dtype(API.find(name.encode()), place, first)]
        if is_number:
            inputs.append({"eps": 1e-6, "scale": 0.5}.get(x, 0.0))
        elif x in ("begin", "end", "keys"):
            edges = np.linspace(0, n, r + 1).astype(np.intp)
            index = {"begin": edges[:-1], "end": edges[1:], "keys": np.diff(edges)}[x]
            inputs.append(index if dims else index[:1].reshape(()))
        elif is_output:
            outputs.append(np.full(shape, np.nan, own))
        else:
            inputs.append((rng.uniform(-0.5, 0.5, shape)).astype(own))
    return inputs, outputs


if __name__ == "__main__":
    print("\n".join(families()))
