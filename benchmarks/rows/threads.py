"""How operators gain from threads, beside NumPy's and PyTorch's products: one thread over several.

2, 4, 8, ... threads, up to the processors that there are.
"""

from __future__ import annotations

import importlib
import os
from functools import partial

import numpy as np
from adapters import peer

import linattn
from linattn import State
from linattn._cli.peers import Call, PyTorch
from linattn._cli.rows import Calls, Row

from .gated import arrays, forward, taken
from .scans import operands as of_scan

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
COUNTS = [2**i for i in range(1, 12) if 2**i < CORES] + ([CORES] if CORES > 1 else [2])
SHAPES = ((32, 4096, 64), (16, 4096, 128), (8, 8192, 64), (1, 65536, 64), (1, 65536, 128))


def attention(name: str, reverse: bool, *sizes: int) -> Call:
    x = arrays(*sizes)
    if name == "causal" and not reverse:
        return partial(linattn.causal, *taken(x, name), out=x["grad_out"])
    if reverse:
        return partial(getattr(linattn, f"{name}_backward"), *taken(x, name), x["grad_out"])
    return forward(name, x)


def selective(reverse: bool, n: int, m: int) -> Call:
    x = of_scan(n, m)
    if not reverse:
        del x["grad_out"]
    name = "selective_scan_backward" if reverse else "selective_scan"
    return partial(getattr(linattn, name), **x, softplus=True)


def linear(n: int, m: int) -> Call:
    x = of_scan(n, m)
    return partial(linattn.linear_scan, x["dt"], x["x"], out=np.empty_like(x["x"]))


def convolution(n: int, m: int) -> Call:
    x = of_scan(n, m)["x"]
    return partial(linattn.causal_conv1d, x, x[:4].T.copy(), activation="silu")


def step(heads: int, d: int) -> Call:
    x = {key: y[:, 0] for key, y in arrays(heads, 1, d).items()}
    state = State(np.zeros((heads, d, d), np.float32))
    return partial(linattn.gated_delta_step, *taken(x, "gated_delta"), state, in_place=True)


def numpy_product(n: int) -> Call:
    x = np.random.default_rng(0).standard_normal((n, n), np.float32)
    return partial(np.matmul, x, x)


def torch_product(dtype: str, n: int) -> Call:
    torch = importlib.import_module("torch")
    x = torch.randn(n, n).to(getattr(torch, dtype))
    return partial(torch.matmul, x, x)


def speedup(make, count: int, *sizes: int) -> Calls:
    """The same call with one thread and with several, of each library."""
    call = make(*sizes)
    controller = importlib.import_module("threadpoolctl").ThreadpoolController()

    def on(threads: int) -> None:
        with controller.limit(limits=threads):
            call()

    return Calls(partial(on, 1), partial(on, count))


def _table():
    """Name, function, sizes, packages, sizes of a smoke test."""
    for sizes in SHAPES:
        for name in ("causal", "gated", "gated_delta"):
            for reverse in (False, True):
                what = f"{name}{'_backward' * reverse} {' x '.join(map(str, sizes))}"
                yield what, partial(attention, name, reverse), sizes, [], ()
    for name in ("causal", "delta", "gated", "gated_delta", "dplr"):
        n = 262144 if name == "causal" else 32768
        yield f"{name}, one head of N = {n:,}", partial(attention, name, False), (1, n, 64), [], ()
    for n, m in ((4096, 4096), (2048, 5120)):
        for name, make in (
            ("selective_scan", partial(selective, False)), ("linear_scan", linear),
            ("selective_scan_backward", partial(selective, True)), ("causal_conv1d", convolution),
        ):  # fmt: skip
            yield f"{name} {n} x {m}", make, (n, m), [], (64, 16)
    for heads in (32, 512):
        yield f"gated_delta_step in place {heads} x 128", step, (heads, 128), [], (2, 8)
    yield "NumPy's product 2048", numpy_product, (2048,), [], (8,)
    for dtype in ("float32", "bfloat16"):
        name = f"PyTorch's product 2048 {dtype}"
        yield name, partial(torch_product, dtype), (2048,), [PyTorch], (8,)


THREADPOOLCTL = peer("threadpoolctl")
ROWS = [
    Row(f"{name}: 1 thread / {count}", partial(speedup, make, count), sizes,
        [THREADPOOLCTL, *needed], 1.7 if count == 2 else None, True, count, tiny=tiny)
    for name, make, sizes, needed, tiny in _table() for count in COUNTS
]  # fmt: skip
