"""``linattn timing``: heads of width 64, and the classic experiment, (Q K^T) V against Q (K^T V).

Heads are causal attention with elu(x) + 1 and its normaliser, against code written by hand.  In the
experiment, both orders of the product give the same matrix, but the first goes through an N x N
matrix.  Q, K and V are arrays of ones, with a single head, no feature map and no normaliser.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

import linattn
from linattn._cli import arguments, bench, memory_use
from linattn._cli.peers import Call, Library, NumPy, PyTorch
from linattn._cli.progress import Bar
from linattn._cli.rows import HEADS8, check, limit_threads
from linattn._core import settings

Order = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

QUADRATIC = "(Q K^T) V  NumPy"
LINEAR = "Q (K^T V)  NumPy"

CONTENDERS: dict[str, Order] = {
    QUADRATIC: lambda q, k, v: (q @ k.T) @ v,
    LINEAR: lambda q, k, v: q @ (k.T @ v),
    "linattn.noncausal": lambda q, k, v: linattn.noncausal(q, k, v, **bench.PLAIN),
    "linattn.causal": lambda q, k, v: linattn.causal(q, k, v, **bench.PLAIN),
}

#: The quadratic order takes seconds per call, so the call that checks it is also timed.  At the
#: default lengths it is skipped if that would take more than this many seconds.
PATIENCE = 30.0
LENGTHS = (10_000, 20_000)
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


HEADS = HEADS8
#: What heads are compared with, and how.
BY_HAND: dict[str, tuple[type[Library], tuple[str, ...]]] = {
    "NumPy, chunked": (NumPy, ("forward",)),
    "PyTorch, chunked": (PyTorch, ("forward", "both")),
}


@dataclass
class Head:
    """One contender: its best times in seconds, of the forward call and with gradients."""

    name: str
    forward: float = 0.0
    both: float | None = None


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
        type=arguments.positive,
        nargs="+",
        metavar="N",
        help="lengths of the experiment (default: 10000 20000, without the quadratic order if it "
        f"would take more than {PATIENCE:.0f} s)",
    )
    parser.add_argument("-d", type=arguments.positive, default=500, help="width (default: 500)")
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="float64")
    parser.add_argument(
        "--repeat",
        type=arguments.positive,
        default=7,
        help="number of calls to take the best time of (default: 7; (Q K^T) V is called once)",
    )
    parser.add_argument(
        "--threads", type=arguments.threads, help="threads of linattn and of NumPy's BLAS"
    )
    parser.add_argument(
        "--json", type=arguments.writable, metavar="FILE", help="write the rows to FILE"
    )
    parser.add_argument(
        "--plot", type=arguments.figure, metavar="FILE", help="draw the rows to FILE"
    )


def run(args: argparse.Namespace) -> int:
    """Print both tables and write the files asked for; 1 if results disagree."""
    rows: list[Row] = []
    with limit_threads(args.threads):
        config = settings.config()
        print(
            f"linattn {linattn.__version__}, {config['isa']}, {linattn.get_num_threads()} threads; "
            f"best of {args.repeat} calls; (Q K^T) V is called once",
            flush=True,
        )
        try:
            first = heads(args.repeat, Bar(sys.stderr))
            print("\n" + table_of_heads(first), flush=True)
            print(f"\n{args.dtype} arrays of ones, D = {args.d}, one head, no normaliser")
            for n in args.lengths or LENGTHS:
                reason = None if args.lengths else _too_long(n, rows)
                new = experiment(n, args.d, args.dtype, args.repeat, Bar(sys.stderr), reason)
                print("\n" + table(new), flush=True)
                rows += new
        except ArithmeticError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print("\n" + conclusion(first, rows))
    if args.json:
        what = {"d": args.d, "dtype": args.dtype, "repeat": args.repeat}
        tables = {"heads": [asdict(row) for row in first], "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps({"config": config, **what, **tables}, indent=2) + "\n")
    if args.plot:
        plot(rows).savefig(args.plot, dpi=150)
    return 0


def heads(repeat: int, bar: Bar) -> list[Head]:
    """Forms written by hand and linattn, first checked against each other, then timed in turn."""
    found: dict[str, Head] = {name: Head(name) for name in ("linattn", *BY_HAND)}
    calls: list[tuple[Head, str, Call]] = []
    bar.total = len(BY_HAND) + repeat
    try:
        for name, (peer, modes) in BY_HAND.items():
            bar.step(f"heads: checking {name}")
            if not peer.available():
                del found[name]
                continue
            for mode in modes:
                pair = bench.by_hand(peer, mode == "both", *HEADS)
                check(name, pair)
                calls += (found["linattn"], mode, pair.b), (found[name], mode, pair.a)
        for _ in range(repeat):
            bar.step("heads: timing")
            for head, mode, call in calls:
                _time(head, call, mode)
    finally:
        bar.clear()
    return [*found.values()]


def table_of_heads(rows: Sequence[Head]) -> str:
    """The rows as text, with each time relative to linattn's."""
    count, n, d = HEADS
    title = f"{count} heads, N = {n:,}, d = {d}, float32: causal, elu(x) + 1, normalised"
    lines = [title, f"{'':20} {'forward':>21} {'with gradients':>21}"]
    for row in rows:
        pairs = (row.forward, rows[0].forward), (row.both, rows[0].both)
        cells = [f"{1e3 * x:9.1f} ms {x / y:6.1f} x" for x, y in pairs if x and y]
        lines.append(" ".join([f"{row.name:20}", *(f"{x:>21}" for x in cells)]))
    return "\n".join(lines)


def experiment(
    n: int, d: int, dtype: str, repeat: int, bar: Bar | None = None, left_out: str | None = None
) -> list[Row]:
    """All contenders at one N, first checked against each other, then timed in turn.

    ``left_out`` is the reason to skip the quadratic order, if there is one.
    """
    bar = bar or Bar(None)
    if shortage := _shortage(3 * n * d * np.dtype(dtype).itemsize):
        return [Row(n, name, skipped=f"Q, K and V {shortage}") for name in CONTENDERS]
    operands = np.ones((3, n, d), dtype)
    rows = {name: Row(n, name) for name in CONTENDERS}
    slow = rows[QUADRATIC]
    slow.skipped = left_out
    # In units of one call of a linear order.
    bar.total = (repeat + 1) * (len(rows) - 1) + (0 if left_out else n / d)
    try:
        _check(rows, operands, bar)
        for _ in range(repeat):
            for name, row in rows.items():
                if row.skipped is None and row is not slow:
                    bar.step(f"N = {n:,}: timing {name}")
                    _time(row, partial(CONTENDERS[name], *operands))
    finally:
        bar.clear()
    for row in rows.values():
        if row.seconds and slow.seconds:
            row.speedup = slow.seconds / row.seconds
    return list(rows.values())


def _too_long(n: int, rows: Sequence[Row]) -> str | None:
    """Why the quadratic order would take too long, estimated from its time at another N."""
    for row in rows:
        if row.name == QUADRATIC and row.seconds:
            seconds = row.seconds * (n / row.n) ** 2
            if seconds > PATIENCE:
                return f"would take about {seconds:.0f} s; -n {n} runs it"
    return None


def _time(row: Any, call: Call, field: str = "seconds") -> Any:
    """The result of the call, whose time goes into the row if it is the best so far."""
    start = time.perf_counter()
    result = call()
    taken = time.perf_counter() - start
    setattr(row, field, min(taken, getattr(row, field) or taken))
    return result


def _check(rows: dict[str, Row], operands: np.ndarray, bar: Bar) -> None:
    """One call each: does it fit into memory, how much does it take, and is the result the same?

    The call of the quadratic order is timed.
    """
    _, n, d = operands.shape
    want = None
    for name, row in rows.items():
        if row.skipped:
            continue
        bar.step(f"N = {n:,}: checking {name}", n / d if name == QUADRATIC else 1)
        between, call = d, partial(CONTENDERS[name], *operands)
        if name == QUADRATIC:
            between, call = n, partial(_time, row, call)
        if shortage := _shortage((between**2 + n * d) * operands.itemsize):
            row.skipped = shortage
            continue
        try:
            got, row.memory = memory_use.peak(call)
        except MemoryError:
            row.skipped = "ran out of memory"
            continue
        want = got if want is None else want
        # In the causal order only the last row sees every key.
        last = slice(-1 if name == "linattn.causal" else 0, None)
        if not np.allclose(got[last], want[last], rtol=TOLERANCE[operands.dtype.name], atol=0):
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


def conclusion(heads: Sequence[Head], rows: Sequence[Row]) -> str:
    """The result of heads in a sentence, and one on the largest N at which both orders ran."""
    first, *others = heads
    parts = [f"{min(x.forward for x in others) / first.forward:.1f} times as fast forward"]
    if first.both:
        both = min(x.both for x in others if x.both)
        parts.append(f"{both / first.both:.1f} times as fast with gradients")
    text = f"{first.name} is {' and '.join(parts)} as the fastest form written by hand."
    for row in reversed(rows):
        if row.name == "linattn.noncausal" and row.speedup:
            return (
                f"{text} At N = {row.n:,}, {row.name} is {row.speedup:.0f} times as fast as "
                "(Q K^T) V, whose time grows with the square of N."
            )
    return text


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


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
