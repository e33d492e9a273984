"""The delta rule: against causal attention, PyTorch and ONNX Runtime; keys of norm 1."""

from __future__ import annotations

from functools import partial

import numpy as np
from adapters import by_chunk, compiled_wy, token_by_token, wy

import linattn
from linattn._cli.bench import MODES, onnx
from linattn._cli.peers import ONNXRuntime, PyTorch
from linattn._cli.rows import Calls, Row, draw

from .gated import against_plain, backward, step

FORMS = {
    "PyTorch, token by token": (lambda torch, *x, chunk: token_by_token(torch, *x), (0,), 20.0),
    "PyTorch, chunked": (wy, (32, 64), 4.0),
    "torch.compile, chunked": (compiled_wy, (32, 64), 4.0),
}


def in_torch(name: str, reverse: bool, *sizes: int) -> Calls:
    x = draw(*sizes)
    operands = [x[key] for key in ("q", "k", "v", "beta", "grad_out")]
    form, chunks, _ = FORMS[name]

    def call(*operands: np.ndarray) -> tuple[np.ndarray, ...]:
        o = linattn.delta(*operands[:-1])
        return o, *(linattn.delta_backward(*operands) if reverse else ())

    calls = by_chunk(PyTorch, [("", form)], chunks, operands, reverse)
    wide = [y.astype(np.float64) for y in operands]
    return Calls(calls, partial(call, *operands), partial(call, *wide), (sizes[0] * sizes[1],) * 2)


ROWS = [
    Row("delta / causal, both identity, unnormalised",
        partial(against_plain, "delta", "causal", False), goal=1.6),
    Row("delta_backward / delta", partial(backward, "delta", False), goal=3.5),
    Row("delta_step / step, 32 heads in place", partial(step, "delta", False), (32, 64), goal=1.5,
        tiny=(2, 8)),
    *(Row(f"ONNX Runtime / linattn, {heads} heads, N = {n:,}, d = {d}, {threads} threads",
          partial(onnx, "delta", more=("beta",)), (heads, n, d), [ONNXRuntime], goal, True, threads)
      for heads, n, d, threads, goal in ((8, 4096, 64, 1, 1.7), (16, 2048, 128, 1, 2.2),
                                         (1, 32768, 64, 2, 2.0))),
    *(Row(f"{name} / linattn, {mode}", partial(in_torch, name, reverse), peers=[PyTorch],
          goal=FORMS[name][2], least=True) for reverse, mode in MODES for name in FORMS),
]  # fmt: skip
