"""Shares of the processor's FMA peak, measured in turn with each operator.

A ratio to a BLAS depends on how well the BLAS is tuned for the processor; a share of the peak does
not.  Only useful operations count: 4 n d m for causal, noncausal and gated attention, 6 n d m for
the delta rules.  The work of maps, triangles, gates and normalisers lowers the share.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from harness import interleave, threads
from report import Report, Row, options

import linattn

SOURCE = Path(__file__).with_name("peak.c")
FLAGS = [
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-ffp-contract=fast",
    "-shared",
    "-fPIC",
]

#: One a token; a strength of 1 / d goes with keys of norm sqrt d.
GATES, STRENGTHS = (np.full((8, 4096), x, np.float32) for x in (-0.1, 1 / 64))

# name, operator, (heads, n, d, m), dtype, useful operations by n d m, options, goal
SHAPES = [
    ("causal", linattn.causal, (8, 4096, 64, 64), "float32", 4, {}, 0.58),
    ("causal, identity, no normaliser", linattn.causal, (8, 4096, 64, 64), "float32", 4,
     {"feature_map": "identity", "normalize": False}, 0.64),
    ("noncausal", linattn.noncausal, (8, 4096, 64, 64), "float32", 4, {}, 0.72),
    ("causal, d = 128", linattn.causal, (16, 2048, 128, 128), "float32", 4, {}, 0.68),
    ("noncausal, d = 500", linattn.noncausal, (1, 10000, 500, 500), "float64", 4,
     {"feature_map": "identity", "normalize": False}, 0.85),
    ("gated", linattn.gated, (8, 4096, 64, 64), "float32", 4, {"g": GATES}, None),
    ("delta", linattn.delta, (8, 4096, 64, 64), "float32", 6, {"beta": STRENGTHS}, None),
    ("gated_delta", linattn.gated_delta, (8, 4096, 64, 64), "float32", 6,
     {"g": GATES, "beta": STRENGTHS}, None),
]  # fmt: skip


def compiled() -> ctypes.CDLL:
    """Compile peak.c for this processor."""
    library = Path(tempfile.mkdtemp()) / "peak.so"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, *FLAGS, str(SOURCE), "-o", str(library)], check=True)
    library = ctypes.CDLL(str(library))
    for name in ("peak_f32", "peak_f64"):
        getattr(library, name).restype = ctypes.c_double
        getattr(library, name).argtypes = [ctypes.c_long]
    library.operations.restype = ctypes.c_long
    return library


def peak(library: ctypes.CDLL, dtype: str, operations: float) -> Callable[[], float]:
    """A call of so many floating-point operations at the peak."""
    single = dtype == "float32"
    run = library.peak_f32 if single else library.peak_f64
    rounds = round(operations / library.operations() * (1 if single else 2))
    return lambda: run(rounds)


def main() -> int:
    parser = options(__doc__)
    args = parser.parse_args()
    report = Report("Shares of the FMA peak, one thread", args)
    library = compiled()
    rng = np.random.default_rng(0)
    with threads(1):
        for name, operator, (heads, n, d, m), dtype, per, more, goal in SHAPES:
            q, k = (rng.standard_normal((heads, n, d)).astype(dtype) for _ in range(2))
            v = rng.standard_normal((heads, n, m)).astype(dtype)
            out = np.empty_like(v)
            work = per * heads * n * d * m
            at_peak = peak(library, dtype, work)
            call = partial(operator, q, k, v, out=out, **more)
            pair = interleave(at_peak, call, 5 if args.quick else 25)
            speed = work / pair.a / 1e9
            report.add(
                Row(
                    name, pair.ratio, pair.low, pair.high,
                    unit="of the peak", target=goal, at_least=True, detail=f"{speed:.0f} GFLOP/s",
                )
            )  # fmt: skip
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
