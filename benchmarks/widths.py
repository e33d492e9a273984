"""Widths that do not fill a vector, 1 to 130, against the next width that does.

One thread, processor time, 2 heads, N = 1024, d = m. A figure is the largest ratio among the widths
of a band, beside the least and the largest; the detail has some of them, width by width. Contiguous
arrays are (heads, n, d); channels-first ones are views of (heads, d, n) memory.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence

import numpy as np
from harness import Call, interleave, threads
from report import Report, Row, options

import linattn

HEADS, N = 2, 1024
OPERATORS = ("causal", "noncausal", "delta", "gated", "causal_backward")
LAYOUTS = ("contiguous", "channels-first")
#: Widths of a row of the table.
BANDS = ((1, 16), (17, 32), (33, 64), (65, 130))
#: Bytes a vector of the instruction sets.
VECTORS = {"x86-64-v4": 64, "x86-64-v3": 32}
DTYPES = ("float32", "float64", "float16")
#: Padding by hand costs no less than this, copies included.
TARGET = 1.25


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    args = parser.parse_args()
    rounds = 3 if args.quick else 5
    report = Report(f"Widths, {args.dtype}", args)
    with threads(1):
        for operator, layout in itertools.product(OPERATORS, LAYOUTS):
            narrow(report, operator, layout, args.dtype, args.quick, rounds)
        for operator in OPERATORS:
            channels_first(report, operator, args.dtype, rounds)
    return report.finish()


def lanes(dtype: str) -> int:
    """Numbers a vector: 16-bit ones are computed with in float32."""
    size = max(np.dtype(dtype).itemsize, 4)
    return VECTORS.get(linattn.get_isa(), 16) // size


def make(operator: str, width: int, layout: str, dtype: str) -> Call:
    """A call of the operator that allocates nothing large."""
    rng = np.random.default_rng(0)

    def lay(x: np.ndarray) -> np.ndarray:
        x = x.astype(dtype)
        return x if layout == "contiguous" else np.ascontiguousarray(x.mT).mT

    q, k, v, g = (lay(rng.standard_normal((HEADS, N, width)) / width**0.5) for _ in range(4))
    rates = rng.random((HEADS, N), np.float32).astype(dtype)
    if operator == "causal_backward":
        outs = tuple(lay(x) for x in (q, k, v))
        backward = linattn.ufuncs.causal_backward_elu
        return lambda: backward(q, k, v, g, 1.0, 1e-6, out=outs)
    out, f = lay(v), getattr(linattn, operator)
    numbers: Sequence[np.ndarray] = {"delta": (rates,), "gated": (-rates,)}.get(operator, ())
    return lambda: f(q, k, v, *numbers, out=out)


def narrow(
    report: Report, operator: str, layout: str, dtype: str, quick: bool, rounds: int
) -> None:
    """A row for each band of widths, of which each is compared with its own full width."""
    step = lanes(dtype)
    for first, last in BANDS:
        ratios = {}
        for full in range(-(-first // step) * step, last + step, step):
            whole = make(operator, full, layout, dtype)
            widths = sorted({full - step + 1, full - step // 2, full - 1} & {*range(first, full)})
            for width in widths if quick else range(max(first, full - step + 1), full):
                if width <= last:
                    call = make(operator, width, layout, dtype)
                    ratios[width] = interleave(call, whole, rounds, clock=time.process_time).ratio
        if ratios:
            what = f"{operator}, {layout}, {first} to {last} / next full width"
            add(report, what, ratios)


def add(report: Report, what: str, ratios: dict[int, float], target: float | None = TARGET) -> None:
    worst = max(ratios, key=ratios.__getitem__)
    some = sorted({*list(ratios)[:: max(1, len(ratios) // 4)], worst})
    detail = ", ".join(f"{width}: {ratios[width]:.2f}" for width in some)
    values = (ratios[worst], min(ratios.values()), ratios[worst])
    report.add(Row(what, *values, target=target, detail=detail))


def channels_first(report: Report, operator: str, dtype: str, rounds: int) -> None:
    ratios = {
        width: interleave(
            make(operator, width, "channels-first", dtype),
            make(operator, width, "contiguous", dtype),
            rounds,
            clock=time.process_time,
        ).ratio
        for width in (8, 16, 17, 32, 64, 128)
    }
    add(report, f"{operator}, channels-first / contiguous", ratios, None)


if __name__ == "__main__":
    sys.exit(main())
