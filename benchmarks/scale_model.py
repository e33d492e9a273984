"""A model of many workers, fitted to what `run.py workers` measured on two; draws it.

With P workers that have n / P tokens of a head each,

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

import argparse
import json
import re
import sys
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


def draw_on(figure: Any, rows: dict[str, Any]) -> None:
    """Scans and their fit; two lengths on up to 10,000 workers; and their efficiency."""
    model = fit(rows)
    scan, strong, part = panels = figure.subplots(1, 3)
    size, seconds = scans(rows)
    x = np.geomspace(size[0], size[-1])
    scan.loglog(size, seconds * 1e6, "o", color="C0", label="measured, two ranks")
    first, slope = scan_time(rows)
    label = f"{first * 1e6:.0f} us + {slope * 1e9:.2f} ns a byte"
    scan.loglog(x, (first + slope * x) * 1e6, color="C0", label=label)
    workers = np.unique(np.geomspace(1, 10_000, 200).astype(int))
    for i, n in enumerate((1e6, 1e9)):
        for what, line, time in (("MPI", "-", model.mpi), ("dask", "--", model.dask)):
            y = np.array([time(p, n) for p in workers])
            named = f"{what}, {n:.0e} tokens".replace("e+0", "e")
            strong.loglog(workers, y, line, color=f"C{i}", label=named)
            part.semilogx(workers, model.c * n / workers / y, line, color=f"C{i}")
    two = rows["causal, two MPI ranks / one thread"]["seconds"]
    dask = rows["causal, two dask workers / one thread, 4 blocks"]["seconds"]
    for what, style, points in (("MPI", "s", {2: two[0], 1: two[1]}), ("dask", "^", {2: dask[0]})):
        strong.loglog([*points], [1e6 / TOKENS * y for y in points.values()], style, color="k",
                      mfc="none", label=f"measured, {what}, per 1e6")  # fmt: skip
    strong.axvspan(1, 2, color="0.9")
    part.axhline(1 / (1 + model.s), color="0.7", lw=0.8)
    scan.set(xlabel="bytes of a state", ylabel="us", title="One step of the scan")
    strong.set(xlabel="workers", ylabel="seconds", title="One head, d = m = 64")
    part.set(xlabel="workers", ylabel="speed-up / workers", ylim=(0, 1.05),
             title="Efficiency against one thread")  # fmt: skip
    scan.legend(fontsize=7)
    strong.legend(fontsize=6, loc="lower left")
    strong.set_ylim(1e-5)
    for panel in panels:
        panel.grid(alpha=0.3)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure to FILE")
    args = parser.parse_args()
    rows = read()
    model = fit(rows)
    print(model)
    for workers in (1, 2, 10, 100, 1000, 10_000):
        print(f"{workers:6} workers, 1e9 tokens: MPI {model.mpi(workers, 1e9):9.3f} s, "
              f"dask {model.dask(workers, 1e9):9.3f} s")  # fmt: skip
    if args.plot:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.8), layout="constrained")
        draw_on(figure, rows)
        figure.savefig(args.plot, dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
