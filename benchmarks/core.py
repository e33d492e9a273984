"""The main ratios of this package, each measured within one run.

One thread, float32, 8 heads, N = 4096, d = m = 64 unless the row says otherwise.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from harness import BENCH, Call, in_fresh_process, interleave, make, threads
from report import Report, Row, options

import linattn
from linattn._cli import memory_use
from linattn._cli.timing import CONTENDERS, LINEAR

#: A token of one head is the unit of the nanoseconds printed.
TOKENS = {name: bench.heads * bench.n for name, bench in BENCH.items()}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel to weigh")
    args = parser.parse_args()
    rounds = 5 if args.quick else 25
    report = Report("Core figures", args)
    with threads(1):
        against_products(report, "causal", 0.9, rounds)
        against_products(report, "noncausal", 0.8, rounds)
        backward(report, "causal", rounds)
        backward(report, "noncausal", rounds)
        long_sequence(report, 3 if args.quick else 9)
        layout(report, rounds)
    two_threads(report, rounds)
    for n in (2_000,) if args.quick else (10_000, 20_000):
        experiment(report, n, 9)
    memory(report, 1 << (16 if args.quick else 20))
    overhead(report, rounds)
    if args.wheel:
        size = args.wheel.stat().st_size / 1e6
        report.add(Row("wheel", size, unit="MB", target=2))
    else:
        report.add(Row("wheel", unit="MB", target=2, skipped="no --wheel given"))
    return report.finish()


def ratio(
    report: Report,
    what: str,
    a: Call,
    b: Call,
    rounds: int,
    *,
    target: float,
    tokens: tuple[int, int],
    threads: int = 1,
) -> None:
    """Add the time of a over that of b, each by the token (and head)."""
    pair = interleave(a, b, rounds, settle=threads > 1)
    per = tokens[1] / tokens[0]
    nanoseconds = pair.a / tokens[0] * 1e9, pair.b / tokens[1] * 1e9
    detail = f"{nanoseconds[0]:.0f} against {nanoseconds[1]:.0f} ns a token and head"
    values = (pair.ratio * per, pair.low * per, pair.high * per)
    report.add(Row(what, *values, target=target, detail=detail))


def against_products(report: Report, name: str, target: float, rounds: int) -> None:
    bench = BENCH[f"{name}-heads8"]
    q, k, v = make(bench.case)
    kt, s, o = k.mT, np.empty((bench.heads, bench.d, bench.m), np.float32), np.empty_like(v)
    operator = getattr(linattn, name)
    ratio(
        report,
        f"{name}, elu, normalised / q @ (k^T @ v) in NumPy",
        lambda: operator(q, k, v, out=o),
        lambda: np.matmul(q, np.matmul(kt, v, out=s), out=o),
        rounds,
        target=target,
        tokens=(TOKENS[bench.name],) * 2,
    )


def backward(report: Report, name: str, rounds: int) -> None:
    """The kernels, writing to existing arrays: page faults of new ones vary at random."""
    bench = BENCH[f"{name}_backward-heads8"]
    q, k, v, g = make(bench.case)
    forward, reverse = (getattr(linattn.ufuncs, f"{name}{x}_elu") for x in ("", "_backward"))
    numbers, outs = (1.0, 1e-6), tuple(np.empty_like(x) for x in (q, k, v))
    ratio(
        report,
        f"{name}_backward / {name}",
        lambda: reverse(q, k, v, g, *numbers, out=outs),
        lambda: forward(q, k, v, *numbers, out=outs[2]),
        rounds,
        target=3.0,
        tokens=(TOKENS[bench.name],) * 2,
    )


def long_sequence(report: Report, rounds: int) -> None:
    long, short = BENCH["causal-long128k"], BENCH["causal-long16k"]
    arrays, cut = make(long.case), make(short.case)
    outs = np.empty_like(arrays[2]), np.empty_like(cut[2])
    ratio(
        report,
        f"causal a token, N = {long.n:,} / {short.n:,}",
        lambda: linattn.causal(*arrays, out=outs[0]),
        lambda: linattn.causal(*cut, out=outs[1]),
        rounds,
        target=1.15,
        tokens=(TOKENS[long.name], TOKENS[short.name]),
    )


def layout(report: Report, rounds: int) -> None:
    """A (B, H, N, d) view of (B, N, H, d) arrays against the contiguous form."""
    bench = BENCH["causal-heads8"]
    packed = [*make(bench.case), np.empty((bench.heads, bench.n, bench.m), np.float32)]
    views = [np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in packed]
    ratio(
        report,
        "causal, (B, N, H, d) view / contiguous (B, H, N, d)",
        lambda: linattn.causal(*views[:3], out=views[3]),
        lambda: linattn.causal(*packed[:3], out=packed[3]),
        rounds,
        target=1.15,
        tokens=(TOKENS[bench.name],) * 2,
    )


def two_threads(report: Report, rounds: int) -> None:
    """One head cannot be shared out by heads: the sequence itself is split."""
    bench = BENCH["causal-one_long_head"]
    arrays = make(bench.case)
    out = np.empty_like(arrays[2])

    def with_threads(count: int) -> None:
        linattn.set_num_threads(count)
        linattn.causal(*arrays, out=out)

    with threads(2):
        ratio(
            report,
            f"causal, one head of N = {bench.n:,}, two threads / one",
            lambda: with_threads(2),
            lambda: with_threads(1),
            rounds,
            target=0.65,
            tokens=(TOKENS[bench.name],) * 2,
            threads=2,
        )


def experiment(report: Report, n: int, rounds: int) -> None:
    """``python -m linattn timing`` without its slow order: float64 ones, D = 500, all cores."""
    q, k, v = np.ones((3, n, 500))
    cores = linattn.get_num_threads()
    for name, target in (("noncausal", 0.8), ("causal", 1.0)):
        order = CONTENDERS[f"linattn.{name}"]
        with threads(cores):
            ratio(
                report,
                f"timing experiment, N = {n:,}: {name} / Q (K^T V) in NumPy",
                partial(order, q, k, v),
                partial(CONTENDERS[LINEAR], q, k, v),
                rounds,
                target=target,
                tokens=(n, n),
                threads=cores,
            )


def memory(report: Report, n: int) -> None:
    for name, target in (("causal", 8), ("causal_backward", 40)):
        mebibytes = in_fresh_process(beyond_arrays, name, n) / 2**20
        what = f"{name}, N = {n:,}: memory beyond the arrays"
        report.add(Row(what, mebibytes, unit="MiB", target=target, detail="one head, d = m = 64"))


def beyond_arrays(name: str, n: int) -> int:
    """Bytes that a call adds to the process besides its results, after a small call."""
    operator = getattr(linattn, name)
    rng = np.random.default_rng(0)
    count = 4 if name.endswith("backward") else 3
    arrays = [rng.standard_normal((n, 64), dtype=np.float32) for _ in range(count)]
    operator(*(x[:64] for x in arrays))
    results, peak = memory_use.peak(lambda: operator(*arrays))
    if peak is None:
        raise OSError("this system does not tell the peak of resident memory")
    results = results if isinstance(results, tuple) else (results,)
    return max(0, peak - sum(x.nbytes for x in results))


def overhead(report: Report, rounds: int) -> None:
    q, k, v = np.ones((3, 4, 8))
    pair = interleave(lambda: linattn.causal(q, k, v), lambda: np.matmul(q, k.T), rounds)
    detail = f"np.matmul of the same arrays {pair.b * 1e6:.2f} us"
    report.add(Row("causal on (4, 8) arrays", pair.a * 1e6, unit="us", target=5, detail=detail))

    code = "import numpy, time; t = time.perf_counter(); import linattn; "
    code += "print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    # As it is installed: compiled once, not at every import.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.check_output(command, env=env)
    seconds = [float(subprocess.check_output(command, env=env)) for _ in range(rounds)]
    milliseconds = [1e3 * x for x in (statistics.median(seconds), min(seconds), max(seconds))]
    report.add(Row("import linattn after import numpy", *milliseconds, unit="ms", target=30))


if __name__ == "__main__":
    sys.exit(main())
