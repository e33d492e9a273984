"""Steps beside ``np.multiply`` of their states, and PyTorch's steps beside NumPy's.

``python benchmarks/steps.py`` prints medians of ratios with their quartiles: processor time, one
thread, float32, interleaved pairs.  ``numpy`` compares steps in place with ``np.multiply(s, c,
out=s)`` and others with ``np.multiply(s, c)``; ``torch`` compares calls of linattn.torch with those
of linattn, in microseconds; ``compile`` does so under torch.compile, and times compiled functions
of the same arguments that compute nothing; ``fla`` compares tokens of linattn.torch.fla with
NumPy's steps; ``pool`` compares steps of rows of a pool with steps in place.

Both times of ``numpy`` depend on where a state begins in a line of the cache, so states in place
begin 16 bytes past a line, as NumPy's large arrays do, and at one, as PyTorch's do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
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


def tensors_of(arrays: Iterable[np.ndarray | None]) -> list:
    """Tensors in the memory of arrays."""
    import torch

    return [None if x is None else torch.from_numpy(x) for x in arrays]


def torch_calls(rounds: int) -> None:
    """What a call of linattn.torch takes more than NumPy's, in microseconds."""
    import torch

    import linattn.torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    heads, d = 8, 64
    for name, args in operands(heads, d).items():
        state = state_of(name, heads, d)
        tensors, same = tensors_of(args), State(*tensors_of(state))
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
        }
        for what, (a, b) in calls.items():
            more = [(x - y) * 1e6 for x, y in pairs(a, b, rounds)]
            print(f"({heads}, {d}) {name + 'step':17} {what:18} +{quartiles(more)} us")


def torch_compile(rounds: int) -> None:
    """The same of compiled steps, and what compiled functions take that compute nothing."""
    import torch

    import linattn.torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    heads, d = 8, 64
    for name, args in operands(heads, d).items():
        state = state_of(name, heads, d)
        tensors, same = tensors_of(args), State(*tensors_of(state))
        numpy_step, step = (getattr(x, f"{name}step") for x in (linattn, linattn.torch))
        fields = [x for x in same if x is not None]
        functions = {
            "in place": (partial(step, in_place=True), same),
            "new": (step, same),
            "an addition": (lambda q, *others: q + 1, *fields),
            "an empty operator": (empty(name, tensors, fields), *fields),
        }
        for what, (function, *after) in functions.items():
            torch.compiler.reset()  # else a call may check what other functions depend on
            call = partial(torch.compile(function, fullgraph=True), *tensors, *after)
            numpy_call = partial(numpy_step, *args, state, in_place=what != "new")
            times = [(x * 1e6, y * 1e6) for x, y in pairs(call, numpy_call, rounds)]
            ours = what in ("in place", "new")
            found = quartiles([x - y if ours else x for x, y in times])
            print(f"({heads}, {d}) {name + 'step':17} {what:18} {'+' if ours else ' '}{found} us")


def empty(name: str, tensors: list, fields: list) -> Callable[..., object]:
    """An operator of PyTorch in Python that takes these tensors and computes nothing."""
    import torch

    given = [f"Tensor x{i}" for i in range(len(tensors))]
    written = [f"Tensor({x}!) {x}" for x, _ in zip("ab", fields, strict=False)]
    name, result = f"steps::{name}empty", tensors[0].clone()
    torch.library.define(name, f"({', '.join([*given, *written])}) -> Tensor")
    torch.library.impl(name, "CPU", lambda *args: result.detach())
    torch.library.register_fake(name, lambda x, *args: torch.empty_like(x))
    return getattr(torch.ops.steps, name.partition("::")[2])


def fla_tokens(rounds: int) -> None:
    """What a token of linattn.torch.fla takes more than NumPy's step with a new state."""
    import torch

    from linattn.torch import fla

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    heads, d = 8, 64
    functions = {
        "delta_": fla.fused_recurrent_delta_rule,
        "gated_": fla.fused_recurrent_simple_gla,
        "gated_delta_": fla.chunk_gated_delta_rule,
    }
    for name, function in functions.items():
        args, state = operands(heads, d)[name], state_of(name, heads, d)
        tensors = [torch.from_numpy(x)[None, None] for x in args]
        token = partial(
            function, *tensors, initial_state=torch.from_numpy(state.s)[None],
            output_final_state=True,
        )  # fmt: skip
        times = pairs(token, partial(getattr(linattn, f"{name}step"), *args, state), rounds)
        more = quartiles([(x - y) * 1e6 for x, y in times])
        print(f"({heads}, {d}) {function.__name__:28} +{more} us")


MODES = {
    "numpy": numpy_steps, "torch": torch_calls, "compile": torch_compile, "fla": fla_tokens,
    "pool": pool_steps,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="numpy", choices=tuple(MODES))
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    linattn.set_num_threads(1)
    MODES[args.what](args.rounds)


if __name__ == "__main__":
    main()
