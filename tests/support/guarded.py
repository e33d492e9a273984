"""Every operator on arrays next to memory that must not be accessed.

Run as a script: an access out of bounds ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from every_call import every_call

import linattn
from linattn import feature_maps

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16

PAGE = mmap.PAGESIZE
SIZES = [(1, 1, 1), (3, 5, 17), (16, 16, 16), (17, 33, 3), (33, 8, 65), (33, 8, 0), (33, 0, 8)]
#: A row, or a column, that is any part of a vector.
NARROW = [(19 - d, d, m) for d, m in zip(range(1, 17), range(16, 0, -1), strict=True)]
#: A view of memory that holds the same numbers in another order; each undoes itself.
LAYOUTS = {
    "by rows": lambda x: x,
    "by columns": lambda x: x.swapaxes(-1, -2) if x.ndim > 1 else x,
    "rows backwards": lambda x: x[..., ::-1, :] if x.ndim > 1 else x[::-1],
    "columns backwards": lambda x: x[..., ::-1],
    "backwards by columns": lambda x: LAYOUTS["by columns"](np.flip(x)),
}
libc = ctypes.CDLL(None, use_errno=True)


free: dict[int, list[np.ndarray]] = {}  # by pages, memory between two pages without access


def bounded(pages: int) -> np.ndarray:
    """The bytes of a number of pages, returned to `free` when the caller is done with them."""
    if free.get(pages):
        return free[pages].pop()
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        if libc.mprotect(ctypes.c_void_p(start + page * PAGE), PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return np.frombuffer(memory, np.uint8, pages * PAGE, PAGE)


def guarded(x: np.ndarray, at_end: bool, layout: str, lent: list[np.ndarray]) -> np.ndarray:
    """A copy of x that ends, or begins, at a page without access."""
    x = LAYOUTS[layout](x)
    # None where x is empty: then nothing may be touched.
    memory = bounded(-(-x.nbytes // PAGE))
    lent.append(memory)
    room = memory[memory.size - x.nbytes :] if at_end else memory[: x.nbytes]
    y = room.view(x.dtype).reshape(x.shape)
    y[...] = x
    y = LAYOUTS[layout](y)
    if x.size == 0:  # as many of NumPy's own empty arrays have them
        y = np.lib.stride_tricks.as_strided(y, strides=(0,) * y.ndim)
    return y


def check(n: int, d: int, m: int, dtype: type, at_end: bool, layout: str) -> None:
    rng = np.random.default_rng(0)
    lent: list[np.ndarray] = []

    def placed(x: Any) -> Any:
        if isinstance(x, tuple):
            return type(x)(*map(placed, x))
        numbers = isinstance(x, np.ndarray) and x.dtype.kind not in "biu"
        return guarded(x, at_end, layout, lent) if numbers else x

    def make(*shape: int, dtype: type = dtype) -> np.ndarray:
        return guarded(rng.random(shape).astype(dtype), at_end, layout, lent)

    def give_back() -> None:
        while lent:
            memory = lent.pop()
            free.setdefault(memory.size // PAGE, []).append(memory)

    for call in every_call(n, d, m, dtype=dtype):
        operands = tuple(map(placed, call.operands))
        options = {name: placed(x) for name, x in call.options.items()}
        call._replace(operands=operands, options=options).run()
        give_back()

    # What every_call does not: filters of many taps, gradients in arrays of the caller, maps whose
    # own directions are guarded, and convolutions with a state.
    wide = np.float64 if dtype is np.float64 else np.float32
    q, k, v, g = (make(2, n, x) for x in (d, d, m, m))
    linattn.causal_conv1d(v, make(m, 9), out=make(2, n, m))
    inputs = make(2, m, 3, dtype=wide)
    weight, bias, conv = make(m, 4), make(m), {"initial_state": inputs, "activation": "silu"}
    linattn.causal_conv1d(v, weight, bias, return_state=True, out=make(2, n, m), **conv)
    linattn.causal_conv1d_backward(v, weight, g, bias, grad_state=inputs, **conv)
    outputs = [make(2, n, x) for x in (d, d, m)]
    linattn.ufuncs.causal_backward_elu(q, k, v, g, 1.0, 1e-6, out=tuple(outputs))
    for gates in (2, n), (2, n, d):
        gate, bonus = make(*gates, dtype=wide), make(2, d, dtype=wide)
        suffix = "_key_channels" if len(gates) > 2 else ""
        backward = getattr(linattn.ufuncs, f"gated{suffix}_bonus_backward_identity")
        last = make(*gates, dtype=wide), make(2, d, dtype=wide)
        backward(q, k, v, gate, bonus, g, 1.0, out=(*(make(2, n, x) for x in (d, d, m)), *last))
    if wide is dtype and d * m > 0:
        feature_maps.PositiveRandomFeatures(make(d, m))(q)
    give_back()


def main() -> None:
    for dtype in (np.float16, bfloat16, np.float32, np.float64):
        narrow = NARROW if np.dtype(dtype).itemsize > 2 else NARROW[::3]  # all become float32
        for at_end in (True, False):
            for n, d, m in SIZES + narrow:
                check(n, d, m, dtype, at_end, "by rows")
            for layout in LAYOUTS:
                for n, d, m in SIZES[3:4] + narrow[2::6]:
                    check(n, d, m, dtype, at_end, layout)
    print("within bounds")


if __name__ == "__main__":
    main()
