"""Random calls of everything there is, against the float64 twin: as many as one likes, by a seed.

    python tools/differential.py --cases 100000
    python tools/differential.py --cases 100000 --seed 7 --first 250000 --isa x86-64-v2 --poison
    tools/sanitize.sh --script tools/differential.py --cases 50000 --poison

A case is drawn from the seed and its number alone, so that a run is resumed with ``--first`` and
shared out by ranges.  It draws an operator, its map, dtypes, sizes about the edges of tiles and
chunks, broadcasting, options, states, lengths and packing, NaN in padding, and how each operand
lies in memory, overlapping ``out`` included.  Each instruction set then runs it twice: on
contiguous copies by one thread, which must agree with the twin in a wider type, within the bounds
of `draws_bounds`; and as drawn, by some threads, which must give the same bits and leave the
operands alone.

The first failure ends the run with the line that repeats it.  Status 0: all cases are right.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

import linattn
from linattn import _linattn
from linattn._core import settings

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from draws import Lot, Trial, laid
from draws_operators import attention, step
from draws_rows import convolution, feature_map, function, log_decay
from draws_scans import scan
from draws_slstm import slstm
from layouts import LAYOUTS
from stages import forced
from states import flat

CHUNKS = 3  # of a group, where threads share the stages of a call

FAMILIES = [
    family
    for family, share in (
        (attention, 20), (step, 6), (convolution, 4), (log_decay, 1), (feature_map, 2),
        (function, 1), (scan, 12), (slstm, 3),
    )
    for _ in range(share)
]  # fmt: skip


def draw(seed: int, number: int) -> Trial:
    lot = Lot(seed, number)
    return lot.pick(FAMILIES)(lot)


def run(trial: Trial, plainly: bool) -> list[np.ndarray]:
    """The results; as drawn, the operands are looked at afterwards.

    Everything is copied, as some ways to lay an array out leave a small one where it is.
    """
    ways = dict.fromkeys(trial.state_ways, np.copy) if plainly else trial.state_ways
    options = trial.options | {key: laid(trial.options[key], way) for key, way in ways.items()}
    given = options.get("state") if options.get("in_place") else None
    if plainly:
        linattn.set_num_threads(1)
        return flat(trial.f(*map(np.copy, trial.operands), **options))
    linattn.set_num_threads(trial.threads)
    operands = [way(x.copy()) for x, way in zip(trial.operands, trial.ways, strict=True)]
    shared = None
    if trial.out:
        shape, way, shared, begins = trial.out
        if shared is None:
            out = LAYOUTS[way](np.full(shape, np.nan, trial.dtype))
        else:
            operands[shared], out = overlapping(trial.operands[shared], shape, begins)
        options["out"] = out
    result = trial.f(*operands, **options)
    for i, (x, y) in enumerate(zip(operands, trial.operands, strict=True)):
        if i != shared and not np.array_equal(x, y, equal_nan=y.dtype.kind not in "biu"):
            raise AssertionError(f"operand {i} was written to")
    if trial.out and (result[0] if isinstance(result, tuple) else result) is not out:
        raise AssertionError("the result is not out")
    if given is not None and result[1] is not given:
        raise AssertionError("the state is not the one given")
    return flat(result)


def overlapping(x: np.ndarray, shape: tuple, begins: tuple):
    """A copy of x and an array of that shape in one piece of memory."""
    memory = np.zeros(max(x.size, prod(shape)) + max(begins), x.dtype)
    views = [
        memory[begin : begin + prod(y)].reshape(y)
        for begin, y in zip(begins, (x.shape, shape), strict=True)
    ]
    views[0][...] = x
    return views


def check(trial: Trial, isas: tuple[str, ...]) -> None:
    """Raises AssertionError where a result is wrong."""
    wide = np.longdouble if trial.work == np.float64 else np.float64
    exact = {
        key: laid(x, lambda y: y.astype(wide)) if key in trial.state_ways else x
        for key, x in trial.options.items()
        if key != "in_place"
    }
    expected = flat(trial.twin(*(x.astype(wide) for x in trial.operands), **exact))
    allowed = None
    for isa in isas:
        linattn.set_isa(isa)
        plain = run(trial, plainly=True)
        if allowed is None:
            allowed = allowances(trial, expected, plain)
        for i, (x, y, slack) in enumerate(zip(plain, expected, allowed, strict=False)):
            compare(isa, i, x, y, slack)
        for i, (x, y) in enumerate(zip(run(trial, plainly=False), plain, strict=True)):
            same(isa, i, x, y)


def allowances(trial: Trial, expected: list, plain: list) -> list[np.ndarray]:
    """What each array may be off by, after its shape and dtype were looked at."""
    info = np.finfo(trial.work)
    allowed = []
    pairs = zip(plain, expected, trial.units(expected), strict=False)
    for i, (x, y, size) in enumerate(pairs):
        dtype = trial.dtypes[i] if i < len(trial.dtypes) else trial.work
        if x.shape != y.shape or x.dtype != dtype:
            raise AssertionError(f"array {i} is {x.dtype}{x.shape}, not {dtype}{y.shape}")
        slack = float(info.eps) / 2 * size + 1e8 * float(info.tiny)
        # So near the end of the range what it is made of may be past it.
        slack = np.where(size < float(info.max), slack, np.inf)
        if dtype.itemsize == 2:
            half = ml_dtypes.finfo(dtype)
            unit = float(half.eps) / 2
            slack = slack + unit * (abs(y) + (size if trial.repeats else 0)) * (1 + unit)
            slack = slack + float(half.smallest_subnormal)
            slack = np.where(abs(y) + slack < float(half.max), slack, np.inf)
        allowed.append(slack)
    return allowed


def compare(isa: str, i: int, x, y, slack) -> None:
    if x.size == 0:
        return
    error = np.where(x == y, 0, abs(x.astype(y.dtype) - y))  # infinities are no numbers apart
    wrong = ~((error <= slack) | (slack == np.inf))
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        ratio = float(np.max(np.where(wrong, error / slack, 0)))
        raise AssertionError(
            f"{isa}: array {i} at {tuple(map(int, at))} is {x[at]}, not {y[at]}: "
            f"{ratio:.3g} times what is allowed; {int(wrong.sum())} of {wrong.size}"
        )


def same(isa: str, i: int, x, y) -> None:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise AssertionError(f"{isa}: array {i} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}")
    if x.tobytes() != y.tobytes():
        nan = np.isnan(x.astype(float)) & np.isnan(y.astype(float))
        differ = ~nan & ((x != y) | (np.signbit(x.astype(float)) != np.signbit(y.astype(float))))
        if differ.any():
            at = np.unravel_index(int(np.argmax(differ)), differ.shape)
            raise AssertionError(
                f"{isa}: array {i} at {tuple(map(int, at))} is {x[at]}, and {y[at]} "
                f"on contiguous copies; {int(differ.sum())} of {differ.size}"
            )


def failure(seed: int, number: int, isas: tuple[str, ...], more: str = "") -> str | None:
    """What is wrong with a case, and the line that repeats it, with ``more`` options; None where
    all is right."""
    trial = None
    try:
        with np.errstate(all="ignore"), forced(CHUNKS):
            trial = draw(seed, number)
            check(trial, isas)
    except Exception as error:
        again = f"python tools/differential.py --seed {seed} --first {number} --cases 1{more}"
        return f"{again}\n  {trial}\n  {type(error).__name__}: {error}"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--isa", choices=settings.available_isas(), help="all by default")
    parser.add_argument("--poison", action="store_true", help="fill scratch with NaN")
    parser.add_argument("--keep-going", action="store_true", help="past what fails")
    chosen = parser.parse_args(arguments)
    isas = (chosen.isa,) if chosen.isa else settings.available_isas()
    _linattn.poison_scratch(0xFF if chosen.poison else 0)
    more = f"{f' --isa {chosen.isa}' if chosen.isa else ''}{' --poison' * chosen.poison}"
    start, failed = time.monotonic(), 0
    for number in range(chosen.first, chosen.first + chosen.cases):
        if message := failure(chosen.seed, number, isas, more):
            failed += 1
            print(message, flush=True)
            if not chosen.keep_going:
                break
        if number % 10_000 == 9_999:
            print(f"up to {number}: {time.monotonic() - start:.0f} s", flush=True)
    done = number + 1 - chosen.first
    print(
        f"{done} cases on each of {', '.join(isas)}: {failed} failed, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
