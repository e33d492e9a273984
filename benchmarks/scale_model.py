"""A model of many workers, fitted to what `run.py workers` measured on two.

The notebook scale.ipynb draws it.  With P workers that have n / P tokens of a head each,

    T(P, n) = c n / P (1 + s) + ceil(log2 P) (alpha + beta b)            MPI
    T(P, n) = c n / P (1 + s) + P t                                      dask, a block a worker

c: seconds a token in one piece; s: what the pass for the states adds, from two ranks against one;
alpha: what a call takes beside its computing on two ranks, three sums that tell of errors and the
scan of states; beta, b: seconds a byte, from scans of states of many sizes, and bytes of a state,
4 (d m + d); t: a scheduler's seconds a block, one after another.  What is assumed: workers as fast
as this one, tokens where they are needed, no more noise than here, and a network that adds 20 us
to each of the four messages and 1 ns a byte (10 Gbit/s), as those here went through shared memory.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).parent / "scale.json"  #: python run.py workers --json scale.json
TOKENS = 2**21  #: of its rows
NETWORK = 80e-6, 1e-9  #: seconds of the messages of a step, and a byte
STATE = 4 * (64 * 64 + 64)


@dataclass
class Model:
    c: float
    s: float
    alpha: float
    beta: float
    block: float

    def mpi(self, workers: float, tokens: float) -> float:
        if workers == 1:
            return self.c * tokens
        alpha, beta = self.alpha + NETWORK[0], self.beta + NETWORK[1]
        return self._computing(workers, tokens) + ceil(log2(workers)) * (alpha + beta * STATE)

    def dask(self, workers: float, tokens: float) -> float:
        if workers == 1:
            return self.c * tokens
        return self._computing(workers, tokens) + workers * self.block

    def _computing(self, workers: float, tokens: float) -> float:
        return self.c * tokens / workers * (1 + self.s)


def read() -> dict[str, Any]:
    """The rows of the record by their names."""
    (report,) = json.loads(RECORD.read_text())
    return {row["what"]: row for row in report["rows"]}


def fit(rows: dict[str, Any]) -> Model:
    """The model's numbers, from medians."""
    ranks = rows["causal, two MPI ranks / one thread"]
    call = rows["linattn.mpi.causal, beyond linattn.causal, 64 tokens a rank"]
    block = rows["dask, the same on a cluster of two processes"]
    return Model(ranks["seconds"][1] / TOKENS, 2 * ranks["value"] - 1, 1e-3 * call["value"],
                 float(scan_time(rows)[1]), 1e-3 * block["value"])  # fmt: skip


def scans(rows: dict[str, Any]) -> Any:
    """Bytes of a state and seconds of a scan."""
    found = ((re.search(r"scan of ranks, (\d+) bytes", x), row) for x, row in rows.items())
    return np.array([(int(size[1]), 1e-6 * row["value"]) for size, row in found if size]).T


def scan_time(rows: dict[str, Any]) -> Any:
    """Seconds of a scan and those a byte, by least squares of relative errors."""
    size, seconds = scans(rows)
    columns = np.stack([1 / seconds, size / seconds], 1)
    return np.maximum(np.linalg.lstsq(columns, np.ones(len(size)), rcond=None)[0], 0)
