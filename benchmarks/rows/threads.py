"""How operators gain from threads, beside NumPy's and PyTorch's products: one thread over several.

2, 4, 8, ... threads, up to the processors that there are.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from adapters import peer
from report import CORES

import linattn
from linattn._cli.peers import Call, PyTorch
from linattn._cli.rows import SETTLE, Calls, Measured, Row, timed

from . import scans
from .gated import backward, convolution, step

COUNTS = [2**i for i in range(1, 12) if 2**i < CORES] + ([CORES] if CORES > 1 else [2])
SHAPES = ((32, 4096, 64), (16, 4096, 128), (8, 8192, 64), (1, 65536, 64), (1, 65536, 128))
LONG = dict.fromkeys(("causal", "noncausal"), 262144)
LONG |= dict.fromkeys(("delta", "gated", "mlstm", "gated_delta", "dplr", "momentum_delta"), 32768)


def side(make: Callable[..., Calls], second: bool, *sizes: int) -> Call:
    """The first or the second call of rows elsewhere."""
    return make(*sizes)[second]


def product(library: str, dtype: str, n: int) -> Call:
    x = np.random.default_rng(0).standard_normal((n, n), np.float32)
    if library == "numpy":
        return partial(np.matmul, x, x)
    torch = importlib.import_module("torch")
    x = torch.from_numpy(x).to(getattr(torch, dtype))
    return partial(torch.matmul, x, x)


def speedup(make, count: int, *sizes: int) -> Calls:
    """The same call with one thread and with several, of each library."""
    call = make(*sizes)
    controller = importlib.import_module("threadpoolctl").ThreadpoolController()

    def on(threads: int) -> None:
        with controller.limit(limits=threads):
            call()

    return Calls(partial(on, 1), partial(on, count))


def after_product(heads: int, d: int, n: int, steps: int) -> Measured:
    """Seconds of a step just after a product, whose threads are still awake, and of one alone."""
    both = linattn.get_num_threads()
    torch, ours = (importlib.import_module(x) for x in ("torch", "linattn.torch"))
    torch.set_num_threads(both)
    q, k, v = torch.rand(3, heads, d)
    g, beta = torch.rand(2, heads)
    state, matrix = linattn.State(torch.zeros(heads, d, d), None), torch.rand(n, n)
    run = partial(ours.gated_delta_step, q, k / d, v, -g, beta, state, in_place=True)

    def after() -> float:
        torch.matmul(matrix, matrix)
        return timed(run)

    def alone() -> float:
        time.sleep(SETTLE)
        run()
        return timed(run)

    return Measured([(after(), alone()) for _ in range(steps)])


def _table():
    """Name, function, sizes, packages."""
    many = [(name, x, f" {' x '.join(map(str, x))}") for x in SHAPES
            for name in ("causal", "gated", "gated_delta")]  # fmt: skip
    one = [(name, (1, n, 64), f", one head of N = {n:,}") for name, n in LONG.items()]
    for name, sizes, what in many + one:
        for forward, end in ((True, ""), (False, "_backward")):
            call = partial(side, partial(backward, name, False), forward)
            yield f"{name}{end}{what}", call, sizes, []
    for sizes in ((4096, 4096), (2048, 5120)):
        for name, make, second in (
            ("selective_scan", scans.backward, True), ("linear_scan", scans.linear, False),
            ("selective_scan_backward", scans.backward, False),
            ("causal_conv1d", convolution, False),
        ):  # fmt: skip
            what = f"{name} {' x '.join(map(str, sizes))}"
            yield what, partial(side, make, second), sizes, []
    for heads in (32, 512):
        call = partial(side, partial(step, "gated_delta", False), False)
        yield f"gated_delta_step in place {heads} x 128", call, (heads, 128), []
    for name, library, dtype, needed in (
        ("NumPy", "numpy", "float32", []), ("PyTorch", "torch", "float32", [PyTorch]),
        ("PyTorch", "torch", "bfloat16", [PyTorch]),
    ):  # fmt: skip
        make = partial(product, library, dtype)
        yield f"{name}'s product 2048 {dtype}", make, (2048,), needed


THREADPOOLCTL = peer("threadpoolctl")
ROWS = [
    Row(f"{name}: 1 thread / {count}", partial(speedup, make, count), sizes,
        [THREADPOOLCTL, *needed], 1.7 if count == 2 else None, True, count)
    for name, make, sizes, needed in _table() for count in COUNTS
] + [
    Row(f"gated_delta_step in place {heads} x 128, PyTorch: after a product / alone",
        after_product, (heads, 128, 1024, 200), [PyTorch], 1.3, threads=count,
        tiny=(heads, 16, 64, 2))  # times of steps vary with how their threads are woken
    for heads in (32, 512) for count in COUNTS
]  # fmt: skip
