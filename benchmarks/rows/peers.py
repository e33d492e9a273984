"""Causal attention in other libraries, each with the fastest of its forms and chunk lengths."""

from __future__ import annotations

from functools import partial

from adapters import CHUNKS, FORMS, by_chunk

from linattn._cli.bench import MODES, causal, onnx
from linattn._cli.peers import NumPy, ONNXRuntime
from linattn._cli.rows import Calls, Row, draw


def normalised(name: str, backward: bool, *sizes: int) -> Calls:
    """elu(x) + 1 and the normaliser."""
    operands = [draw(*sizes)[x] for x in ("q", "k", "v", "grad_out")]
    peer, forms = FORMS[name]
    ours, want = (partial(causal, backward, *(x.astype(dtype) for x in operands)) for dtype in "fd")
    tokens = (sizes[0] * sizes[1],) * 2
    return Calls(by_chunk(peer, forms, CHUNKS, operands, backward), ours, want, tokens)


#: What the compilers have to take at least: forward, forward + backward.
GOALS = {"torch.compile": (5.0, 4.0), "jax.jit": (5.0, 4.0)}
ROWS = [
    *(Row(f"{name} / linattn, {mode}", partial(normalised, name, backward), peers=[peer],
          goal=GOALS.get(name, (None, None))[backward], least=True)
      for backward, mode in MODES for name, (peer, _) in FORMS.items()
      if not (backward and peer is NumPy)),
    *(Row(f"ONNX Runtime / linattn, {heads} heads, N = {n:,}, d = {d}, {threads} threads",
          partial(onnx, "causal"), (heads, n, d), [ONNXRuntime], goal, True, threads)
      for heads, n, d, threads, goal in ((8, 4096, 64, 1, 2.0), (16, 2048, 128, 1, 2.85),
                                         (1, 32768, 64, 2, 2.2))),
]  # fmt: skip
