"""Steps beside ``np.multiply`` of their states, and PyTorch's steps beside NumPy's.

``python benchmarks/steps.py`` prints medians of ratios with their quartiles: processor time, one
thread, float32, interleaved pairs.  ``numpy`` compares steps in place with ``np.multiply(s, c,
out=s)`` and others with ``np.multiply(s, c)``; ``torch`` compares calls of linattn.torch with those
of linattn, in microseconds; ``pool`` compares steps of rows of a pool with steps in place.

Both times of ``numpy`` depend on where a state begins in a line of the cache, so states in place
begin 16 bytes past a line, as NumPy's large arrays do, and at one, as PyTorch's do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import linattn
from linattn import State

SHAPES = (8, 64), (32, 64), (32, 128), (128, 128)
LINE, OFFSETS = 64, (16, 0)  #: bytes
POOLS = (1, 8, 64), (4, 32, 64), (16, 8, 64), (16, 1, 64), (16, 32, 128)  #: batch, heads, width
SAMPLE = 0.004  #: seconds

Call = Callable[[], object]


def pairs(a: Call, b: Call, rounds: int) -> list[tuple[float, float]]:
    """Seconds per call of a and of b, in turn."""
    a(), b()
    counts = [max(1, round(SAMPLE / max(sample(x, 3), 1e-7))) for x in (a, b)]
    return [(sample(a, counts[0]), sample(b, counts[1])) for _ in range(rounds)]


def sample(call: Call, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def operands(heads: int, d: int) -> dict[str, tuple[np.ndarray, ...]]:
    """Those of each step, before the state, contiguous."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, heads, d), np.float32) / np.float32(d**0.5)
    g = -rng.random(heads, np.float32)
    beta = rng.random(heads, np.float32)
    gk = -rng.random((heads, d), np.float32)
    return {
        "": (q, k, v),
        "delta_": (q, k, v, beta),
        "gated_": (q, k, v, g),
        "gated_delta_": (q, k, v, g, beta),
        "dplr_": (q, k, v, -k, k * beta[:, None], gk),
    }


def zeros(shape: tuple[int, ...], offset: int) -> np.ndarray:
    """An array that begins `offset` bytes past a line."""
    count = int(np.prod(shape))
    memory = np.zeros(count * 4 + 2 * LINE, np.uint8)
    start = -memory.ctypes.data % LINE + offset
    return memory[start : start + count * 4].view(np.float32).reshape(shape)


def state_of(name: str, heads: int, d: int, offset: int = OFFSETS[0]) -> State:
    s = zeros((heads, d, d), offset)
    return State(s, np.ones((heads, d), np.float32)) if not name else State(s)


def pool_steps(rounds: int) -> None:
    """Steps of rows of a pool, in a random order, beside steps in place of a batch of its own."""
    for batch, heads, d in POOLS:
        rows = np.random.default_rng(0).permutation(2 * batch)[:batch]
        for name, args in operands(batch * heads, d).items():
            given = [x.reshape(batch, heads, *x.shape[1:]) for x in args]
            own, pool = (
                State(*(None if x is None else x.reshape(n, heads, *x.shape[1:]) for x in state))
                for n in (batch, 2 * batch)
                for state in (state_of(name, n * heads, d),)
            )
            step = getattr(linattn, f"{name}step")
            times = pairs(
                partial(step, *given, pool, state_indices=rows),
                partial(step, *given, own, in_place=True),
                rounds,
            )
            us = statistics.median(x for x, _ in times) * 1e6
            ratios = quartiles([x / y for x, y in times])
            print(f"({batch:3}, {heads:3}, {d:3}) {name + 'step':17} pool {ratios} {us:8.2f} us")


def numpy_steps(rounds: int) -> None:
    for heads, d in SHAPES:
        for name, args in operands(heads, d).items():
            step, c = getattr(linattn, f"{name}step"), np.float32(0.999)
            row = []
            for in_place, offset in (*((True, x) for x in OFFSETS), (False, OFFSETS[0])):
                state, plain = state_of(name, heads, d, offset), zeros((heads, d, d), offset)
                times = pairs(
                    partial(step, *args, state, in_place=in_place),
                    partial(np.multiply, plain, c, out=plain if in_place else None),
                    rounds,
                )
                us = statistics.median(x for x, _ in times) * 1e6
                row.append(f"{quartiles([x / y for x, y in times])} {us:7.2f} us")
            print(
                f"({heads:3}, {d:3}) {name + 'step':17} in place: past a line {row[0]}, "
                f"at one {row[1]}; new {row[2]}"
            )


def torch_calls(rounds: int) -> None:
    """What a call of linattn.torch takes more than NumPy's, in microseconds."""
    import torch

    import linattn.torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    heads, d = 8, 64
    for name, args in operands(heads, d).items():
        state, tensors = state_of(name, heads, d), [torch.from_numpy(x) for x in args]
        same = State(*(None if x is None else torch.from_numpy(x) for x in state))
        step, torch_step = (getattr(x, f"{name}step") for x in (linattn, linattn.torch))
        whole, torch_whole = (getattr(x, name[:-1] or "causal") for x in (linattn, linattn.torch))
        calls = {
            "in place": (
                partial(torch_step, *tensors, same, in_place=True),
                partial(step, *args, state, in_place=True),
            ),
            "new": (partial(torch_step, *tensors, same), partial(step, *args, state)),
            "forward": (
                partial(torch_whole, *(x[:, None] for x in tensors)),
                partial(whole, *(x[:, None] for x in args)),
            ),
            "compiled, in place": (
                compiled(partial(torch_step, in_place=True), *tensors, same),
                partial(step, *args, state, in_place=True),
            ),
        }
        for what, (a, b) in calls.items():
            more = [(x - y) * 1e6 for x, y in pairs(a, b, rounds)]
            print(f"({heads}, {d}) {name + 'step':17} {what:18} +{quartiles(more)} us")


def compiled(step: Callable[..., object], *args: object) -> Call:
    """A step under torch.compile, without graph breaks."""
    import torch

    return partial(torch.compile(step, fullgraph=True), *args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="numpy", choices=("numpy", "torch", "pool"))
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    linattn.set_num_threads(1)
    run = {"numpy": numpy_steps, "torch": torch_calls, "pool": pool_steps}[args.what]
    run(args.rounds)


if __name__ == "__main__":
    main()
