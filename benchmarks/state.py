"""States, decoding, packed sequences, 16-bit numbers and grouped queries.

Each figure is a ratio within one run.  One thread, float32, 8 heads, N = 4096, d = m = 64 unless
the row says otherwise.
"""

from __future__ import annotations

import sys

import numpy as np
from harness import BENCH, Call, interleave, make, threads
from report import Report, Row, options

import linattn
from linattn import State

D = 64
FLOAT = np.float32


def main() -> int:
    args = options(__doc__).parse_args()
    rounds = 5 if args.quick else 25
    report = Report("States, decoding and packed sequences", args)
    with threads(1):
        steps(report, 256 if args.quick else 4096, rounds)
        single_step(report, rounds)
        with_states(report, rounds)
        packed(report, 8 if args.quick else 64, 3 if args.quick else 9)
        half(report, rounds)
        grouped(report, 4096, rounds)
    return report.finish()


def ratio(
    report: Report, what: str, a: Call, b: Call, rounds: int, target: float | None, detail: str
) -> None:
    """Add the time of a over that of b; the detail has both in milliseconds."""
    pair = interleave(a, b, rounds)
    detail = detail.format(pair.a * 1e3, pair.b * 1e3)
    report.add(Row(what, pair.ratio, pair.low, pair.high, target=target, detail=detail))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=FLOAT)


def zeros(*lead: int) -> State:
    return State(np.zeros((*lead, D, D), FLOAT), np.zeros((*lead, D), FLOAT))


def steps(report: Report, heads: int, rounds: int) -> None:
    """A step reads and writes every state once, as a copy does."""
    q, k, v = normal(3, heads, D)
    state, copy = zeros(heads), zeros(heads)
    ratio(
        report,
        f"step of {heads} heads in place / np.copyto of their states",
        lambda: linattn.step(q, k, v, state, in_place=True),
        lambda: np.copyto(copy.s, state.s),
        rounds,
        1.2,
        "{:.2f} against {:.2f} ms",
    )


def single_step(report: Report, rounds: int) -> None:
    q, k, v = normal(3, 8, D)
    state = zeros(8)
    z = np.zeros_like(state.s)
    pair = interleave(
        lambda: linattn.step(q, k, v, state, in_place=True),
        lambda: np.copyto(z, state.s),
        rounds,
    )
    detail = f"np.copyto of the states {pair.b * 1e6:.2f} us"
    report.add(Row("step of 8 heads in place", pair.a * 1e6, unit="us", target=4, detail=detail))


def with_states(report: Report, rounds: int) -> None:
    bench = BENCH["causal-heads8"]
    q, k, v = make(bench.case)
    out, start = np.empty_like(v), zeros(bench.heads)
    ratio(
        report,
        "causal with initial and final state / without",
        lambda: linattn.causal(q, k, v, initial_state=start, return_state=True, out=out),
        lambda: linattn.causal(q, k, v, out=out),
        rounds,
        1.03,
        "{:.2f} against {:.2f} ms",
    )


def packed(report: Report, sequences: int, rounds: int) -> None:
    """Many sequences of different lengths against one sequence of their total length."""
    lengths = np.random.default_rng(1).integers(1_000, 8_001, sequences)
    cu_seqlens = np.concatenate(([0], lengths.cumsum()))
    n = int(cu_seqlens[-1])
    q, k, v = normal(3, n, D)
    out = np.empty_like(v)
    ratio(
        report,
        f"{sequences} packed sequences of 1,000 to 8,000 / one of as many tokens",
        lambda: linattn.causal(q, k, v, cu_seqlens=cu_seqlens, out=out),
        lambda: linattn.causal(q, k, v, cu_seqlens=[0, n], out=out),
        rounds,
        1.1,
        f"{{:.1f}} against {{:.1f}} ms, one head of {n:,}",
    )


def half(report: Report, rounds: int) -> None:
    q, k, v = make(BENCH["causal-heads8"].case)
    types = {"float16": np.float16}
    try:
        import ml_dtypes
    except ImportError:
        report.add(Row("bfloat16 causal / float32", target=1.0, skipped="no ml_dtypes"))
    else:
        types["bfloat16"] = ml_dtypes.bfloat16
    out = np.empty_like(v)
    for name, dtype in types.items():
        narrow = [x.astype(dtype) for x in (q, k, v)]
        narrow_out = np.empty(v.shape, dtype)
        ratio(
            report,
            f"{name} causal / float32",
            lambda narrow=narrow, o=narrow_out: linattn.causal(*narrow, out=o),
            lambda: linattn.causal(q, k, v, out=out),
            rounds,
            1.0,
            "{:.2f} against {:.2f} ms",
        )


def grouped(report: Report, n: int, rounds: int) -> None:
    """8 query heads that share their keys, against as many copies of the keys."""
    q = normal(1, 1, 8, n, D)
    k, v = normal(2, 1, 1, 1, n, D)
    many_k, many_v = (np.repeat(x, 8, axis=2) for x in (k, v))
    for name in ("causal", "noncausal"):
        operator = getattr(linattn, name)
        out = np.empty_like(q)
        ratio(
            report,
            f"{name}, 8 queries a key head / with the keys repeated",
            lambda f=operator, o=out: f(q, k, v, out=o),
            lambda f=operator, o=out: f(q, many_k, many_v, out=o),
            rounds,
            0.75,
            "{:.2f} against {:.2f} ms",
        )


if __name__ == "__main__":
    sys.exit(main())
