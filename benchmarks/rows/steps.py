"""Steps beside ``np.multiply`` of their states.

Both times depend on where a state begins in a line of the cache, so states in place begin 16 bytes
past a line, as NumPy's large arrays do, and at one, as PyTorch's do.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import linattn
from linattn import State
from linattn._cli.rows import Calls, Row
from linattn.operators.registry import RECURRENCES

from .gated import arrays, taken

NAMES = ("causal", "delta", "gated", "gated_delta", "dplr")
LINE = 64  #: bytes
PLACES = (
    ("in place, past a line", True, 16), ("in place, at a line", True, 0), ("new state", False, 16),
)  # fmt: skip


def function(name: str) -> str:
    return RECURRENCES[name].names["step"]


def operands(name: str, heads: int, d: int) -> list[np.ndarray]:
    """Of one token, contiguous."""
    x = arrays(heads, 1, d, channels=name == "dplr")
    return [np.ascontiguousarray(y[:, 0]) for y in taken(x, name)]


def zeros(shape: tuple[int, ...], offset: int) -> np.ndarray:
    """An array that begins `offset` bytes past a line."""
    count = int(np.prod(shape))
    memory = np.zeros(count * 4 + 2 * LINE, np.uint8)
    start = -memory.ctypes.data % LINE + offset
    return memory[start : start + count * 4].view(np.float32).reshape(shape)


def state_of(name: str, heads: int, d: int, offset: int = 16) -> State:
    s = zeros((heads, d, d), offset)
    return State(s, np.ones((heads, d), np.float32)) if name == "causal" else State(s)


def beside_product(name: str, in_place: bool, offset: int, heads: int, d: int) -> Calls:
    state, plain = state_of(name, heads, d, offset), zeros((heads, d, d), offset)
    step = partial(getattr(linattn, function(name)), *operands(name, heads, d), state)
    product = partial(np.multiply, plain, np.float32(0.999), out=plain if in_place else None)
    return Calls(partial(step, in_place=in_place), product)


ROWS = [
    *(Row(f"{function(name)}, {what}, {heads} heads of {d} / np.multiply",
          partial(beside_product, name, in_place, offset), (heads, d), goal=1.3)
      for what, in_place, offset in PLACES
      for heads, d in ((8, 64), (32, 64), (32, 128), (128, 128)) for name in NAMES),
]  # fmt: skip
