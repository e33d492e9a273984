"""States, decoding, packed sequences, 16-bit numbers and grouped queries."""

from __future__ import annotations

from functools import partial

import numpy as np
from adapters import ML_DTYPES

import linattn
from linattn import State
from linattn._cli.rows import HEADS8, Calls, Row, draw

from .gated import half


def zeros(*shape: int) -> State:
    return State(np.zeros(shape, np.float32), np.zeros(shape[:-1], np.float32))


def step(heads: int, d: int) -> Calls:
    """A step reads and writes every state once, as a copy does."""
    q, k, v = (draw(heads, 1, d)[x][:, 0] for x in "qkv")
    state, copy = zeros(heads, d, d), np.empty((heads, d, d), np.float32)
    ours = partial(linattn.step, q, k, v, state, in_place=True)
    return Calls(ours, partial(np.copyto, copy, state.s))


def with_states(heads: int, n: int, d: int) -> Calls:
    x = draw(heads, n, d)
    call = partial(linattn.causal, x["q"], x["k"], x["v"], out=x["grad_out"])
    return Calls(partial(call, initial_state=zeros(heads, d, d), return_state=True), call)


def packed(sequences: int, longest: int, d: int) -> Calls:
    """Many sequences of different lengths against one sequence of their total length."""
    lengths = np.random.default_rng(1).integers(longest // 8, longest + 1, sequences)
    cu_seqlens = np.concatenate(([0], lengths.cumsum()))
    n = int(cu_seqlens[-1])
    q, k, v, out = (draw(1, n, d)[x][0] for x in ("q", "k", "v", "grad_out"))
    call = partial(linattn.causal, q, k, v, out=out)
    return Calls(partial(call, cu_seqlens=cu_seqlens), partial(call, cu_seqlens=[0, n]))


def grouped(name: str, heads: int, n: int, d: int) -> Calls:
    """Query heads that share their keys, against as many copies of the keys."""
    q = draw(heads, n, d)["q"]
    k, v = (draw(1, n, d)[x] for x in "kv")
    out = np.empty((heads, n, d), np.float32)
    function = partial(getattr(linattn, name), q, out=out)
    many = (np.repeat(x, heads, axis=0) for x in (k, v))
    return Calls(
        partial(function, k=k, v=v), partial(function, **dict(zip("kv", many, strict=True)))
    )


ROWS = [
    Row("step of 4096 heads in place / np.copyto of their states", step, (4096, 64), goal=1.2),
    Row("step of 8 heads in place, beside np.copyto", step, (8, 64), goal=4, unit="us"),
    Row("causal with initial and final state / without", with_states, goal=1.03),
    Row("64 packed sequences of 1,000 to 8,000 / one of as many tokens", packed, (64, 8000, 64),
        goal=1.1),
    *(Row(f"{dtype} causal / float32", partial(half, "causal", dtype), HEADS8, [ML_DTYPES], 1.0)
      for dtype in ("float16", "bfloat16")),
    *(Row(f"{name}, 8 queries a key head / with the keys repeated", partial(grouped, name),
          goal=0.75) for name in ("causal", "noncausal")),
]  # fmt: skip
