"""One causal forward and backward of a sequence on disk, in memory that does not grow with it.

Eight files of n d float32: q, k, v and the gradient of the output, the output and three gradients.
A block of tokens is mapped at a time: forwards with the state of the block before, which is kept,
and backwards from the last block with the gradient of the state after it.  Two sums over all
tokens tell whether all is right: the state after the last token in float64, and sum(g o) against
sum(v dv), which are equal as the output is linear in v.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import in_fresh_process, options, write

import linattn

D, BLOCK = 16, 2**17
INPUTS, OUTPUTS = ("q", "k", "v", "g"), ("o", "dq", "dk", "dv")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**20, 2**22, 2**26])
    parser.add_argument("--folder", type=Path, help="where the files are for a while")
    args = parser.parse_args()
    rows = []
    for n in args.lengths:
        rows.append(in_fresh_process(measure, n, args.folder))
        print(json.dumps(rows[-1]), flush=True)
    write(args.json, rows)
    return 0


def measure(n: int, folder: Path | None) -> dict[str, Any]:
    """Seconds and peak memory of a sequence of n tokens, and the errors of the two sums."""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        files = Files(Path(room), n)
        base, start = peak(), time.perf_counter()
        states = forward(files)
        middle = time.perf_counter()
        backward(files, states)
        end, most = time.perf_counter(), peak()
        return {
            "tokens": n, "d": D, "block": BLOCK, "threads": linattn.get_num_threads(),
            "bytes on disk": 8 * 4 * n * D, "forward seconds": middle - start,
            "backward seconds": end - middle, "peak RSS": most, "peak RSS before": base,
            **check(files, states),
        }  # fmt: skip


def peak() -> int:
    """The peak memory of this process in bytes, including mapped files."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Files:
    """Files of a folder, the inputs random."""

    def __init__(self, folder: Path, n: int) -> None:
        self.folder, self.n = folder, n
        rng = np.random.default_rng(0)
        for name in (*INPUTS, *OUTPUTS):
            with (folder / name).open("wb") as file:
                file.truncate(n * D * 4)
            for begin in self.blocks() if name in INPUTS else ():
                (x,) = self.block(begin, name)
                rng.standard_normal(dtype=np.float32, out=x)

    def blocks(self) -> range:
        return range(0, self.n, BLOCK)

    def block(self, begin: int, *names: str) -> list[np.memmap]:
        """Tokens of some files; they are unmapped as soon as the arrays are deleted."""
        shape = min(BLOCK, self.n - begin), D
        return [np.memmap(self.folder / x, "f4", "r+", 4 * D * begin, shape) for x in names]


def forward(files: Files) -> list[Any]:
    """Writes the output; the states before all blocks, and that after the last."""
    states: list[Any] = [None]
    for begin in files.blocks():
        *x, o = files.block(begin, "q", "k", "v", "o")
        states.append(linattn.causal(*x, initial_state=states[-1], return_state=True, out=o)[1])
    return states


def backward(files: Files, states: list[Any]) -> None:
    """Writes the gradients, from the last block to the first."""
    zero = linattn.State(np.zeros((D, D), np.float32), np.zeros(D, np.float32))
    grad = zero
    for j, begin in reversed([*enumerate(files.blocks())]):
        *x, dq, dk, dv = files.block(begin, *INPUTS, "dq", "dk", "dv")
        start = states[j] or zero
        dq[...], dk[...], dv[...], grad = linattn.causal_backward(
            *x, initial_state=start, grad_state=grad
        )


def check(files: Files, states: list[Any]) -> dict[str, float]:
    s, dots = np.zeros((D, D)), np.zeros(2)
    for begin in files.blocks():
        k, v, g, o, dv = (np.asarray(x, float) for x in files.block(begin, *"kvgo", "dv"))
        s += np.where(k > 0, k + 1, np.exp(np.minimum(k, 0))).T @ v
        dots += np.vdot(g, o), np.vdot(v, dv)
    dots /= np.sqrt(files.n)  # values of both signs: a sum is of the order of its root
    state = abs(states[-1].s - s).max() / abs(s).max()
    return {
        "state error": float(state), "dot error": float(abs(dots[0] - dots[1])),
        "dot": float(dots[0]),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
