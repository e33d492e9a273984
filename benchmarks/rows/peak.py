"""Shares of the processor's FMA peak, measured in turn with each operator.

A ratio to a BLAS depends on how well the BLAS is tuned for the processor; a share of the peak does
not.  Only useful operations count: 4 n d m for causal, noncausal and gated attention, 6 n d m for
the delta rules.  The work of maps, triangles, gates and normalisers lowers the share.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import linattn
from linattn._cli.bench import PLAIN
from linattn._cli.rows import HEADS8, Calls, Row

from .gated import arrays, taken

SOURCE = Path(__file__).parent.parent / "peak.c"
FLAGS = (
    "-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=fast", "-shared", "-fPIC",
)  # fmt: skip


@functools.cache
def compiled() -> ctypes.CDLL:
    """peak.c, compiled for this processor."""
    library = Path(tempfile.mkdtemp()) / "peak.so"
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, SOURCE, "-o", library]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"peak.c does not compile for this processor: {done.stderr[:200]}")
    return ctypes.CDLL(str(library))


def share(name: str, dtype: str, options: dict, heads: int, n: int, d: int) -> Calls:
    """As many operations at the peak, and the operator's call."""
    library, single = compiled(), dtype == "float32"
    library.operations.restype = ctypes.c_long
    run = library.peak_f32 if single else library.peak_f64
    run.argtypes, run.restype = [ctypes.c_long], ctypes.c_double
    work = (6 if "delta" in name else 4) * heads * n * d * d
    x = {key: y.astype(dtype) for key, y in arrays(heads, n, d).items()}
    names = taken(x, "causal" if name == "noncausal" else name)
    call = partial(getattr(linattn, name), *names, out=np.empty_like(x["v"]), **options)
    return Calls(partial(run, round(work / library.operations() * (1 if single else 2))), call)


#: Name, operator, sizes, dtype, options, goal.
SHARES = (
    ("causal", "causal", HEADS8, "float32", {}, 0.58),
    ("causal, identity, no normaliser", "causal", HEADS8, "float32", PLAIN, 0.64),
    ("noncausal", "noncausal", HEADS8, "float32", {}, 0.72),
    ("causal, d = 128", "causal", (16, 2048, 128), "float32", {}, 0.68),
    ("noncausal, d = 500", "noncausal", (1, 10000, 500), "float64", PLAIN, 0.85),
    ("gated", "gated", HEADS8, "float32", {}, None),
    ("delta", "delta", HEADS8, "float32", {}, None),
    ("gated_delta", "gated_delta", HEADS8, "float32", {}, None),
)
ROWS = [
    Row(what, partial(share, name, dtype, options), sizes, goal=goal, least=True,
        unit="of the peak")
    for what, name, sizes, dtype, options, goal in SHARES
]  # fmt: skip
