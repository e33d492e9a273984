"""``linattn bench``: the time of other libraries' operators relative to linattn's, here.

`benchmarks/run.py main` has the same rows, on one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import linattn
from linattn._cli import arguments, info, peers
from linattn._cli.peers import Form, Library, NumPy, ONNXRuntime, PyTorch
from linattn._cli.progress import Bar
from linattn._cli.rows import HEADS8, Calls, Row, draw, limit_threads, measure

MODES = ((False, "forward"), (True, "forward + backward"))
PLAIN: dict[str, Any] = {"feature_map": "identity", "normalize": False}


def products(name: str, heads: int, n: int, d: int) -> Calls:
    """The two products of the form without a map, into given memory."""
    q, k, v = (draw(heads, n, d)[x] for x in "qkv")
    s, o, ours = np.empty((heads, d, d), np.float32), np.empty_like(v), np.empty_like(v)
    return Calls(
        lambda: np.matmul(q, np.matmul(k.mT, v, out=s), out=o),
        partial(getattr(linattn, name), q, k, v, out=ours),
        tokens=(heads * n,) * 2,
    )


def by_hand(
    peer: type[Library], backward: bool, *sizes: int,
    form: Form = peers.scan, name: str = "causal", more: Sequence[str] = (),
) -> Calls:  # fmt: skip
    """A form of an operator, causal attention by default, and linattn's."""
    operands = [draw(*sizes)[x] for x in (*"qkv", *more, "grad_out")]
    ours, want = (partial(call, name, backward, *x) for x in (operands, _wide(operands)))
    return Calls(peer.call(form, operands, backward), ours,
                 None if form is peers.softmax else want, (sizes[0] * sizes[1],) * 2)  # fmt: skip


def call(name: str, backward: bool, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
    """The output of linattn, and gradients if asked for."""
    o = getattr(linattn, name)(*operands[:-1])
    return o, *(getattr(linattn, f"{name}_backward")(*operands) if backward else ())


def onnx(name: str, *sizes: int, more: Sequence[str] = (), channels: bool = False) -> Calls:
    """ONNX Runtime's operator, with gates and strengths if asked for."""
    x = draw(*sizes, channels=channels)
    operands = [x[key] for key in (*"qkv", *more)]
    ours = partial(getattr(linattn, name), **(PLAIN if name == "causal" else {}))
    return Calls(
        ONNXRuntime.call(*operands[:3], **{{"g": "decay"}.get(key, key): x[key] for key in more}),
        partial(ours, *operands, out=np.empty_like(x["v"])),
        partial(ours, *_wide(operands)),
        (sizes[0] * sizes[1],) * 2,
    )


def _wide(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [x.astype(np.float64) for x in operands]


ROWS = [
    *(Row(f"NumPy, bare products q @ (k^T @ v) / {name}", partial(products, name), goal=goal,
          least=True) for name, goal in (("causal", 1.11), ("noncausal", 1.25))),
    Row("NumPy, chunked / causal, forward", partial(by_hand, NumPy, False)),
    *(Row(f"PyTorch, {what} / causal, {mode}", partial(by_hand, PyTorch, backward, form=form),
          peers=[PyTorch])
      for what, form in (("chunked", peers.scan), ("softmax attention", peers.softmax))
      for backward, mode in MODES),
    *(Row(f"ONNX Runtime, LinearAttention / {name}", partial(onnx, name, more=more),
          peers=[ONNXRuntime]) for name, more in (("causal", ()), ("gated_delta", ("g", "beta")))),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=arguments.positive, default=2, help="of a row (2)")
    parser.add_argument("--threads", type=arguments.threads, help="of every library")


def run(args: argparse.Namespace) -> int:
    """Print a line per row; 1 if results differ."""
    bar = Bar(sys.stderr, len(ROWS))
    try:
        with limit_threads(args.threads):
            print(f"{info.cpu()}, {os.cpu_count()} processors; linattn {linattn.__version__}, "
                  f"{linattn.get_isa()}, {linattn.get_num_threads()} threads")  # fmt: skip
            heads, n, d = HEADS8
            print(f"Time relative to linattn's: {heads} heads, N = {n:,}, d = {d}, float32\n")
            print(f"{'':50} {'median':>7} {'min-max':>15}", flush=True)
            for row in ROWS:
                bar.step(row.name)
                line = _line(row, args)
                bar.clear()
                print(line, flush=True)
    except ArithmeticError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        bar.clear()
    return 0


def _line(row: Row, args: argparse.Namespace) -> str:
    if row.missing:
        return f"{row.name:50} skipped: {row.missing} is not installed"
    found = measure(row.name, row.calls(), args.seconds, args.threads)
    middle, low, high = found.spread()
    return f"{row.name:50} {middle:6.2f}x {f'{low:.2f}-{high:.2f}':>15}  {found.detail}"
