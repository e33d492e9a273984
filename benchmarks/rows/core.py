"""linattn's operators against each other, memory, and what a call costs."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np
from report import CORES

import linattn
from linattn._cli.bench import ROWS as MAIN
from linattn._cli.rows import Calls, Row, draw
from linattn._cli.timing import CONTENDERS, LINEAR

from .gated import backward


def causal(arrays: list[np.ndarray]) -> partial:
    return partial(linattn.causal, *arrays, out=np.empty_like(arrays[2]))


def long_sequence(heads: int, n: int, d: int, short: int) -> Calls:
    arrays = [draw(heads, n, d)[x] for x in "qkv"]
    cut = [np.ascontiguousarray(x[:, :short]) for x in arrays]
    return Calls(causal(arrays), causal(cut), tokens=(heads * n, heads * short))


def layout(backward: bool, heads: int, n: int, d: int) -> Calls:
    """A (B, H, N, d) view of (B, N, H, d) arrays against the contiguous form."""
    packed = [draw(heads, n, d)[x] for x in ("q", "k", "v", "grad_out")]
    views = [np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in packed]
    calls = (
        partial(linattn.causal_backward, *x) if backward else causal(x[:3]) for x in (views, packed)
    )
    return Calls(*calls, tokens=(heads * n,) * 2)


def experiment(name: str, n: int, d: int) -> Calls:
    """``linattn timing`` without its slow order: float64 ones."""
    arrays = np.ones((3, n, d))
    orders = (CONTENDERS[x] for x in (LINEAR, f"linattn.{name}"))
    return Calls(*(partial(order, *arrays) for order in orders), tokens=(n, n))


def memory(name: str, n: int, d: int) -> partial:
    """A call on one head."""
    x = draw(1, n, d)
    more = {"delta": ("beta",)}.get(name.removesuffix("_backward"), ())
    grads = ("grad_out",) if name.endswith("backward") else ()
    return partial(getattr(linattn, name), *(x[key][0] for key in (*"qkv", *more, *grads)))


def small(n: int, d: int) -> Calls:
    q, k, v = np.ones((3, n, d))
    return Calls(lambda: linattn.causal(q, k, v), lambda: np.matmul(q, k.T))


def imports(count: int) -> list[float]:
    """Milliseconds, as it is installed: compiled once, not at every import."""
    code = "import numpy, time; t = time.perf_counter(); import linattn; "
    code += "print(1e3 * (time.perf_counter() - t))"
    env = {x: y for x, y in os.environ.items() if x != "PYTHONDONTWRITEBYTECODE"}
    run = partial(subprocess.check_output, [sys.executable, "-c", code], env=env)
    run()
    return [float(run()) for _ in range(count)]


ROWS = [
    *MAIN[:2],
    *(Row(f"{name}_backward / {name}", partial(backward, name, False), goal=3.0)
      for name in ("causal", "noncausal")),
    Row("causal a token, N = 131,072 / 16,384", long_sequence, (8, 131072, 64, 16384), goal=1.15),
    *(Row(f"causal{suffix}, (B, N, H, d) view / contiguous (B, H, N, d)",
          partial(layout, bool(suffix)), goal=1.15) for suffix in ("", "_backward")),
    *(Row(f"timing experiment, N = {n:,}: Q (K^T V) in NumPy / {name}", partial(experiment, name),
          (n, 500), goal=goal, least=True, threads=CORES)
      for n in (10_000, 20_000) for name, goal in (("noncausal", 1.25), ("causal", 1.0))),
    *(Row(f"{name}, N = {n:,}: memory beyond the arrays", partial(memory, name), (n, 64),
          goal=goal, unit="MiB")
      for name, n, goal in (("causal", 2**20, 8), ("causal_backward", 2**20, 40),
                            ("delta_backward", 2**18, 64))),
    Row("causal on (4, 8) arrays, beside np.matmul", small, (4, 8), goal=5, unit="us"),
    Row("import linattn after import numpy", imports, (25,), goal=30, unit="ms", tiny=(1,)),
]  # fmt: skip
