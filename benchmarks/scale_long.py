"""One causal forward and backward of a sequence on disk, in memory that does not grow with it.

Eight files of n d float32: q, k, v and the gradient of the output, the output and three gradients.
A block of tokens is mapped at a time: forwards with the state of the block before, which is kept,
and backwards from the last block with the gradient of the state after it.  Two sums over all
tokens tell whether all is right: the state after the last token in float64, and sum(g o) against
sum(v dv), which are equal as the output is linear in v.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from processes import in_fresh_process

import linattn

D = 16
BLOCK = 2**17
INPUTS, OUTPUTS = ("q", "k", "v", "g"), ("o", "dq", "dk", "dv")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**20, 2**22, 2**26])
    parser.add_argument("--folder", type=Path, help="where the files are for a while")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()
    rows = []
    for n in args.lengths:
        rows.append(in_fresh_process(measure, n, args.folder))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measure(n: int, folder: Path | None) -> dict[str, Any]:
    """Seconds and peak memory of a sequence of n tokens, and the errors of the two sums."""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        files = {name: Path(room) / name for name in (*INPUTS, *OUTPUTS)}
        write(files, n)
        base = peak()
        start = time.perf_counter()
        states = forward(files, n)
        middle = time.perf_counter()
        backward(files, n, states)
        end = time.perf_counter()
        most = peak()
        size = sum(path.stat().st_size for path in files.values())
        errors = check(files, n, states)
    return {
        "tokens": n, "d": D, "block": BLOCK, "threads": linattn.get_num_threads(),
        "bytes on disk": size, "forward seconds": middle - start, "backward seconds": end - middle,
        "peak RSS": most, "peak RSS before": base, **errors,
    }  # fmt: skip


def peak() -> int:
    """The peak memory of this process in bytes, including mapped files."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write(files: dict[str, Path], n: int) -> None:
    rng = np.random.default_rng(0)
    for name in INPUTS:
        with files[name].open("wb") as file:
            for size in sizes(n):
                file.write(rng.standard_normal((size, D), dtype=np.float32))
    for name in OUTPUTS:
        with files[name].open("wb") as file:
            file.truncate(n * D * 4)


def sizes(n: int) -> Iterator[int]:
    for begin in range(0, n, BLOCK):
        yield min(BLOCK, n - begin)


def mapped(files: dict[str, Path], names: tuple[str, ...], begin: int, n: int) -> list[np.memmap]:
    """A block of tokens of some files; it is unmapped as soon as the arrays are deleted."""
    shape = min(BLOCK, n - begin), D
    return [np.memmap(files[x], "f4", "r+", 4 * D * begin, shape) for x in names]


def forward(files: dict[str, Path], n: int) -> list[Any]:
    """Writes the output; the states before all blocks, and that after the last."""
    states: list[Any] = [None]
    for begin in range(0, n, BLOCK):
        q, k, v, o = mapped(files, ("q", "k", "v", "o"), begin, n)
        _, state = linattn.causal(q, k, v, initial_state=states[-1], return_state=True, out=o)
        states.append(state)
    return states


def backward(files: dict[str, Path], n: int, states: list[Any]) -> None:
    """Writes the gradients, from the last block to the first."""
    zero = linattn.State(np.zeros((D, D), np.float32), np.zeros(D, np.float32))
    grad = zero
    for j, begin in reversed(list(enumerate(range(0, n, BLOCK)))):
        *operands, dq, dk, dv = mapped(files, (*INPUTS, "dq", "dk", "dv"), begin, n)
        *grads, grad = linattn.causal_backward(
            *operands, initial_state=states[j] or zero, grad_state=grad
        )
        for to, x in zip((dq, dk, dv), grads, strict=True):
            to[...] = x


def check(files: dict[str, Path], n: int, states: list[Any]) -> dict[str, float]:
    s, dots = np.zeros((D, D)), np.zeros(2)
    for begin in range(0, n, BLOCK):
        k, v, g, o, dv = (np.asarray(x, float)
                          for x in mapped(files, ("k", "v", "g", "o", "dv"), begin, n))  # fmt: skip
        s += np.where(k > 0, k + 1, np.exp(np.minimum(k, 0))).T @ v
        dots += np.vdot(g, o), np.vdot(v, dv)
    scale = np.sqrt(n)  # values of both signs: a sum is of the order of its root
    return {
        "state error": float(abs(states[-1].s - s).max() / abs(s).max()),
        "dot error": float(abs(dots[0] - dots[1]) / scale),
        "dot": float(dots[0] / scale),
    }


if __name__ == "__main__":
    sys.exit(main())
