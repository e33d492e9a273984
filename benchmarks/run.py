"""linattn against other libraries and against itself: ratios of times, a row each.

    python run.py                      # every family of rows
    python run.py core delta --only backward
    python run.py --list

A row is an entry of a table in `rows/`: what is compared, on which sizes, with how many threads,
and its goal.  The two calls of a row take turns, after a check of their results; the figure is the
median of the ratios of neighbours, beside the smallest and the largest.  One thread is timed by the
processor, which leaves out other programs.  Errors are those of the two calls against float64, the
largest one over the largest entry.  Rows of libraries that are not installed are skipped.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from report import Figure, Report, in_fresh_process, options, write

from linattn._cli import memory_use
from linattn._cli.rows import Calls, Row, check, limit_threads, measure, timed

#: By name, what RESULTS.md calls it.  Each is a module of `rows` with a table ROWS.
FAMILIES = {
    "main": "What `linattn bench` prints",
    "core": "Core figures",
    "peers": "Peers",
    "state": "States, decoding and packed sequences",
    "delta": "Delta rule",
    "gated": "Gated recurrences",
    "blocks": "Tokens in blocks",
    "products": "Products of bfloat16 operands",
    "scans": "Scans",
    "mamba3": "Mamba-3",
    "maps": "Feature maps, Linformer and softmax attention",
    "widths": "Widths",
    "threads": "Threads",
    "steps": "Steps",
    "tensors": "Calls from PyTorch",
    "engines": "Kernels of inference engines",
    "transformers_models": "Models of Transformers, 1 thread(s)",
    "fla_models": "Recurrences of fla",
    "workers": "Across workers",
}
#: Figures of pairs of seconds that are not ratios, by unit.
UNITS = {"x": lambda a, b: a / b, "us": lambda a, b: 1e6 * a, "+us": lambda a, b: 1e6 * (a - b)}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose names hold TEXT")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a row, about")
    parser.add_argument("--threads", type=int, help="in place of those of each row")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--smoke", action="store_true", help="run each row once, tiny, untimed")
    args = parser.parse_args()
    if unknown := {*args.families} - {*FAMILIES}:
        parser.error(f"no such family: {', '.join(sorted(unknown))}")
    os.environ.setdefault("NPROC", "1")  # JAX's threads, read when it is imported
    if args.smoke:
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes minutes
    reports, failed = [], False
    for family in args.families or FAMILIES:
        rows = [
            row for row in importlib.import_module(f"rows.{family}").ROWS if args.only in row.name
        ]
        if args.list or args.smoke:
            for row in rows:
                print(f"{family}: {row.name}", *([smoke(row)] if args.smoke else []), flush=True)
            continue
        reports.append(Report(FAMILIES[family], args.markdown))
        for row in rows:
            reports[-1].add(figure(row, args.seconds, args.threads or row.threads))
        reports[-1].finish()
        failed |= any("Error" in x.skipped for x in reports[-1].figures)
    write(args.json, [report.data() for report in reports])
    return int(failed)


def figure(row: Row, seconds: float, threads: int) -> Figure:
    """A row measured, or why it is not."""
    given = {"unit": row.unit, "goal": row.goal, "least": row.least}
    for peer in row.peers:
        if peer.gradients is not None:
            given |= {"gradients": "yes" if peer.gradients else "no", "threads": threads}
    if row.missing:
        return Figure(row.name, **given, skipped=f"needs {row.missing}")
    try:
        with prepared(threads):
            return Figure(row.name, **given, **measured(row, seconds, threads))
    except (ArithmeticError, ImportError, OSError) as error:  # one row does not end a long run
        return Figure(row.name, **given, skipped=f"{type(error).__name__}: {error}")


def measured(row: Row, seconds: float, threads: int) -> dict[str, Any]:
    """What a Figure says about the calls of a row, or the numbers that its function found."""
    calls = row.calls() if row.unit != "MiB" else [in_fresh_process(beyond, row, threads)]
    if isinstance(calls, dict):  # the worst of several
        found = {x: measure(row.name, y, seconds, threads).spread()[0] for x, y in calls.items()}
        detail = ", ".join(f"{x}: {y:.2f}" for x, y in found.items())
        return {"value": max(found.values()), "low": min(found.values()),
                "high": max(found.values()), "detail": detail}  # fmt: skip
    if isinstance(calls, list):
        value, low, high = statistics.median(calls), min(calls), max(calls)
        return {"value": value} | ({"low": low, "high": high} if len(calls) > 1 else {})
    label = ""
    if isinstance(calls, Calls):
        calls, label = fastest(calls)
        calls = measure(row.name, calls, seconds, threads)
    value, low, high = calls.spread(UNITS[row.unit])
    return {
        "value": value, "low": low, "high": high, "seconds": calls.medians,
        "errors": ", ".join(f"{x:.0e}" for x in calls.errors),
        "detail": "; ".join(filter(None, (label, calls.detail))),
    }  # fmt: skip


def fastest(calls: Calls) -> tuple[Calls, str]:
    """The calls with the fastest of several on the left, and its name."""
    if callable(calls.a):
        return calls, ""
    times = {}
    for name, call in calls.a.items():
        call()  # compiles
        times[name] = min(timed(call) for _ in range(3))
    best = min(times, key=times.__getitem__)
    return calls._replace(a=calls.a[best]), best


@contextlib.contextmanager
def prepared(threads: int) -> Iterator[None]:
    """So many threads, and nothing compiled for earlier rows, which PyTorch would check first."""
    if torch := sys.modules.get("torch"):
        torch.compiler.reset()
    with limit_threads(threads):
        yield


def smoke(row: Row) -> str:
    """Each call of a row once, on tiny arrays, and the check of its results."""
    if row.missing:
        return f"skipped: needs {row.missing}"
    try:
        with prepared(row.threads):
            run_once(row)
    except ImportError as error:
        return f"skipped: {error}"
    return "ok"


def run_once(row: Row) -> None:
    calls = row.calls(tiny=True)
    for each in calls.values() if isinstance(calls, dict) else [calls]:
        if isinstance(each, Calls):
            for call in (each.a,) if callable(each.a) else each.a.values():
                check(row.name, each._replace(a=call))
        elif callable(each):
            each()


def beyond(row: Row, threads: int) -> float:
    """MiB that a call adds to the process besides its results, after a small call."""
    with limit_threads(threads):
        row.calls(tiny=True)()
        results, peak = memory_use.peak(row.calls())
    if peak is None:
        raise OSError("this system does not tell the peak of resident memory")
    results = results if isinstance(results, tuple) else (results,)
    return max(0, peak - sum(x.nbytes for x in results)) / 2**20


if __name__ == "__main__":
    sys.exit(main())
