"""Widths that do not fill a vector against the next width that does, and channels-first memory.

A figure is the largest ratio of a row, beside the least and the largest; the detail has each.
Contiguous arrays are (heads, n, d), d = m; channels-first ones are views of (heads, d, n) memory.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import linattn
from linattn._cli.peers import Call
from linattn._cli.rows import Calls, Row, draw

OPERATORS = ("causal", "noncausal", "delta", "gated", "causal_backward")
LAYOUTS = ("contiguous", "channels-first")
#: Widths of a row of the table.
BANDS = ((1, 16), (17, 32), (33, 64), (65, 130))
#: Bytes a vector of the instruction sets.
VECTORS = {"x86-64-v4": 64, "x86-64-v3": 32}


def call(operator: str, layout: str, heads: int, n: int, width: int) -> Call:
    """A call of the operator that allocates nothing large."""

    def lay(x: np.ndarray) -> np.ndarray:
        return x if layout == "contiguous" else np.ascontiguousarray(x.mT).mT

    x = draw(heads, n, width)
    q, k, v, g = (lay(x[key]) for key in ("q", "k", "v", "grad_out"))
    if operator == "causal_backward":
        outs = tuple(lay(x) for x in (q, k, v))
        return partial(linattn.ufuncs.causal_backward_elu, q, k, v, g, 1.0, 1e-6, out=outs)
    rates = {"delta": (x["beta"],), "gated": (x["g"],)}.get(operator, ())
    return partial(getattr(linattn, operator), q, k, v, *rates, out=lay(v))


def narrow(
    operator: str, layout: str, heads: int, n: int, first: int, last: int
) -> dict[str, Calls]:
    """The narrowest, middle and widest below each full width of a band."""
    step = VECTORS.get(linattn.get_isa(), 16) // 4
    make, found = partial(call, operator, layout, heads, n), {}
    for full in range(-(-first // step) * step, last + step, step):
        whole = make(full)
        for width in sorted({full - step + 1, full - step // 2, full - 1}):
            if first <= width <= min(last, full - 1):
                found[str(width)] = Calls(make(width), whole)
    return found


def channels_first(operator: str, heads: int, n: int, *widths: int) -> dict[str, Calls]:
    return {
        str(width): Calls(*(call(operator, x, heads, n, width) for x in reversed(LAYOUTS)))
        for width in widths
    }


ROWS = [
    *(Row(f"{operator}, {layout}, {first} to {last} / next full width",
          partial(narrow, operator, layout), (2, 1024, first, last), goal=1.25,
          tiny=(1, 8, first, min(last, first + 16)))
      for operator in OPERATORS for layout in LAYOUTS for first, last in BANDS),
    *(Row(f"{operator}, channels-first / contiguous", partial(channels_first, operator),
          (2, 1024, 8, 16, 17, 32, 64, 128), tiny=(1, 8, 5)) for operator in OPERATORS),
]  # fmt: skip
