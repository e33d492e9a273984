"""``linattn timing``: heads of width 64, and the classic experiment, (Q K^T) V against Q (K^T V).

_timing_peers.py has the first part.  In the second, both orders of the product give the same
matrix, but the first goes through an N x N matrix.  Q, K and V are arrays of ones, with a single
head, no feature map and no normaliser.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import linattn
from linattn._cli import memory_use, peers
from linattn._cli.progress import Bar
from linattn._core import settings

Order = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

QUADRATIC = "(Q K^T) V  NumPy"
LINEAR = "Q (K^T V)  NumPy"
PLAIN: dict[str, Any] = {"feature_map": "identity", "normalize": False}

CONTENDERS: dict[str, Order] = {
    QUADRATIC: lambda q, k, v: (q @ k.T) @ v,
    LINEAR: lambda q, k, v: q @ (k.T @ v),
    "linattn.noncausal": lambda q, k, v: linattn.noncausal(q, k, v, **PLAIN),
    "linattn.causal": lambda q, k, v: linattn.causal(q, k, v, **PLAIN),
}

#: The quadratic order takes seconds per call, so the call that checks it is also timed.  At the
#: default lengths it is skipped if that would take more than this many seconds.
PATIENCE = 30.0
LENGTHS = (10_000, 20_000)
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


@dataclass
class Row:
    """One contender at one N: its best time, or why it was skipped."""

    n: int
    name: str
    seconds: float | None = None
    speedup: float | None = None  # over the quadratic order
    memory: int | None = None  # bytes beyond Q, K and V, the result included
    skipped: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--lengths",
        type=_positive,
        nargs="+",
        metavar="N",
        help="lengths of the experiment (default: 10000 20000, without the quadratic order if it "
        f"would take more than {PATIENCE:.0f} s)",
    )
    parser.add_argument("-d", type=_positive, default=500, help="width (default: 500)")
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="float64")
    parser.add_argument(
        "--repeat",
        type=_positive,
        default=7,
        help="number of calls to take the best time of (default: 7; (Q K^T) V is called once)",
    )
    parser.add_argument("--threads", type=_threads, help="threads of linattn and of NumPy's BLAS")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--plot", type=_plottable, metavar="FILE", help="draw the rows to FILE")


def run(args: argparse.Namespace) -> int:
    """Print both tables and write the files asked for; 1 if results disagree."""
    rows: list[Row] = []
    with _limit_threads(args.threads):
        config = settings.config()
        print(
            f"linattn {linattn.__version__}, {config['isa']}, {linattn.get_num_threads()} threads; "
            f"best of {args.repeat} calls; (Q K^T) V is called once",
            flush=True,
        )
        try:
            heads = peers.rows(args.repeat, Bar(sys.stderr))
            print("\n" + peers.table(heads), flush=True)
            print(f"\n{args.dtype} arrays of ones, D = {args.d}, one head, no normaliser")
            for n in args.lengths or LENGTHS:
                reason = None if args.lengths else _too_long(n, rows)
                new = experiment(n, args.d, args.dtype, args.repeat, Bar(sys.stderr), reason)
                print("\n" + table(new), flush=True)
                rows += new
        except ArithmeticError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print("\n" + " ".join([peers.conclusion(heads), *conclusion(rows)]))
    if args.json:
        what = {"d": args.d, "dtype": args.dtype, "repeat": args.repeat}
        tables = {"heads": [asdict(row) for row in heads], "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps({"config": config, **what, **tables}, indent=2) + "\n")
    if args.plot:
        plot(rows).savefig(args.plot, dpi=150)
    return 0


def experiment(
    n: int, d: int, dtype: str, repeat: int, bar: Bar | None = None, left_out: str | None = None
) -> list[Row]:
    """All contenders at one N, first checked against each other, then timed in turn.

    ``left_out`` is the reason to skip the quadratic order, if there is one.
    """
    bar = bar or Bar(None)
    size = np.dtype(dtype).itemsize
    shortage = _shortage(3 * n * d * size)
    if shortage:
        return [Row(n, name, skipped=f"Q, K and V {shortage}") for name in CONTENDERS]
    q, k, v = (np.ones((n, d), dtype) for _ in range(3))
    rows = {name: Row(n, name) for name in CONTENDERS}
    rows[QUADRATIC].skipped = left_out
    # In units of one call of a linear order.
    bar.total = (repeat + 1) * (len(rows) - 1) + (0 if left_out else n / d)
    try:
        _check(rows, (q, k, v), bar)
        for _ in range(repeat):
            for name, row in rows.items():
                if row.skipped is None and name != QUADRATIC:
                    bar.step(f"N = {n:,}: timing {name}")
                    _time(row, partial(CONTENDERS[name], q, k, v))
    finally:
        bar.clear()
    for row in rows.values():
        if row.seconds and (slowest := rows[QUADRATIC].seconds):
            row.speedup = slowest / row.seconds
    return list(rows.values())


def _too_long(n: int, rows: Sequence[Row]) -> str | None:
    """Why the quadratic order would take too long, estimated from its time at another N."""
    for row in rows:
        if row.name == QUADRATIC and row.seconds:
            seconds = row.seconds * (n / row.n) ** 2
            if seconds > PATIENCE:
                return f"would take about {seconds:.0f} s; -n {n} runs it"
    return None


def _time(row: Row, call: Callable[[], Any]) -> Any:
    """The result of the call, whose time goes into the row if it is the best so far."""
    start = time.perf_counter()
    result = call()
    taken = time.perf_counter() - start
    row.seconds = min(taken, row.seconds or taken)
    return result


def _check(rows: dict[str, Row], operands: Sequence[np.ndarray], bar: Bar) -> None:
    """One call each: does it fit into memory, how much does it take, and is the result the same?

    The call of the quadratic order is timed.
    """
    n, d = operands[0].shape
    size, dtype = operands[0].itemsize, operands[0].dtype.name
    want = None
    for name, row in rows.items():
        if row.skipped:
            continue
        bar.step(f"N = {n:,}: checking {name}", n / d if name == QUADRATIC else 1)
        between = n * n if name == QUADRATIC else d * d
        row.skipped = _shortage((between + n * d) * size)
        if row.skipped:
            continue
        call = partial(CONTENDERS[name], *operands)
        if name == QUADRATIC:
            call = partial(_time, row, call)
        try:
            got, row.memory = memory_use.peak(call)
        except MemoryError:
            row.skipped = "ran out of memory"
            continue
        want = got if want is None else want
        # In the causal order only the last row sees every key.
        last = slice(-1, None) if name == "linattn.causal" else slice(None)
        if not np.allclose(got[last], want[last], rtol=TOLERANCE[dtype], atol=0):
            raise ArithmeticError(f"N = {n:,}: {name} disagrees with the other orders")


def _shortage(need: int) -> str | None:
    have = memory_use.available()
    if have is None or need <= have:
        return None
    return f"would take {_bytes(need)} and {_bytes(have)} is free"


def table(rows: Sequence[Row]) -> str:
    """The rows of one N as text."""
    title = f"N = {rows[0].n:,}"
    lines = [f"{title:20} {'seconds':>9} {'speed-up':>9} {'memory':>10}"]
    for row in rows:
        if row.skipped:
            lines.append(f"{row.name:20} skipped: {row.skipped}")
            continue
        speedup = f"{row.speedup:.1f} x" if row.speedup else "-"
        memory = "-" if row.memory is None else _bytes(row.memory)
        lines.append(f"{row.name:20} {row.seconds:9.4f} {speedup:>9} {memory:>10}")
    return "\n".join(lines)


def conclusion(rows: Sequence[Row]) -> list[str]:
    """A sentence on the largest N at which both orders ran."""
    for row in reversed(rows):
        if row.name == "linattn.noncausal" and row.speedup:
            return [
                f"At N = {row.n:,}, {row.name} is {row.speedup:.0f} times as fast as (Q K^T) V, "
                "whose time grows with the square of N."
            ]
    return []


def plot(rows: Sequence[Row]) -> Any:
    """A Matplotlib figure of seconds against N."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(CONTENDERS):
        mine = sorted((r.n, r.seconds) for r in rows if r.name == name and r.seconds)
        if mine:
            label = name.replace("K^T", "K$^T$")
            axes.plot(*zip(*mine, strict=True), "o-", color=f"C{index}", label=label)
    lengths = sorted({row.n for row in rows})
    seconds = [y for line in axes.lines for y in np.asarray(line.get_ydata())] or [1.0]
    decades = 10 ** np.floor(np.log10(min(seconds))), 10 ** np.ceil(np.log10(max(seconds)))
    axes.set(xscale="log", yscale="log", ylim=decades, xlabel="N", ylabel="seconds")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


@contextlib.contextmanager
def _limit_threads(threads: int | None) -> Iterator[None]:
    if threads is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  # so that the limit applies to it

    usual = linattn.get_num_threads()
    linattn.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        linattn.set_num_threads(usual)


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def _threads(text: str) -> int:
    if importlib.util.find_spec("threadpoolctl") is None:
        raise argparse.ArgumentTypeError(
            "needs threadpoolctl to limit NumPy as well: pip install threadpoolctl"
        )
    if (number := _positive(text)) > settings.MAX_THREADS:
        raise argparse.ArgumentTypeError(f"expected 1 to {settings.MAX_THREADS}, got {text!r}")
    return number


def _writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write a file at {text!r}")
    return path


def _plottable(text: str) -> Path:
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install matplotlib")
    path = _writable(text)
    known = (".png", ".svg", ".pdf")
    if path.suffix not in known:
        raise argparse.ArgumentTypeError(f"expected a name in {', '.join(known)}, got {text!r}")
    return path
