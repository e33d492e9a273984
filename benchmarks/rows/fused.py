"""The fused gated delta step in place beside its parts, and the step on the memory alone."""

from __future__ import annotations

import numpy as np

import linattn
from linattn._cli.rows import Calls, Row

#: Heads of keys and of values, and their widths: Qwen3-Next's, and smaller ones.
SHAPES = (1, 1, 64), (4, 8, 64), (16, 32, 128)
TAPS = 4


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def calls(whole: bool, h: int, n: int, d: int) -> Calls:
    rng = np.random.default_rng(0)
    c = 2 * h * d + n * d
    shapes = (1, c), (1, n * d), (c, TAPS), (1, c, TAPS - 1), (1, n, d, d), (1, n), (1, n), n, n
    x, z, weight, conv, s, a, b, A_log, dt_bias = (
        rng.standard_normal(shape, np.float32) for shape in shapes
    )
    norm, state = np.ones(d, np.float32), linattn.FusedState(conv, s)
    by_key = linattn.State(s.reshape(1, h, n // h, d, d))
    q, k = rng.standard_normal((2, 1, h, 1, d), np.float32)
    v = rng.standard_normal((1, h, n // h, d), np.float32)
    rates = np.ones((1, h, n // h), np.float32)

    def fused() -> object:
        return linattn.fused_gated_delta_step(
            x, a, b, state, A_log=A_log, dt_bias=dt_bias, weight=weight, z=z, norm_weight=norm,
            scale=d**-0.5, in_place=True,
        )  # fmt: skip

    def step(*operands: np.ndarray) -> tuple:
        return linattn.gated_delta_step(
            *operands, by_key, feature_map="l2norm", scale=d**-0.5, in_place=True
        )

    def parts() -> object:
        y, _ = linattn.causal_conv1d_step(x, weight, conv, activation="silu", in_place=True)
        q, k = (y[:, i * h * d : (i + 1) * h * d].reshape(1, h, 1, d) for i in range(2))
        g = linattn.log_decay(a, A_log, dt_bias).reshape(1, h, -1)
        beta = (1 / (1 + np.exp(-b))).reshape(1, h, -1)
        o, _ = step(q, k, y[:, 2 * h * d :].reshape(1, h, -1, d), g, beta)
        o = o / np.sqrt((o * o).mean(-1, keepdims=True) + 1e-6) * norm
        return o.reshape(1, -1) * silu(z)

    return Calls(fused, parts if whole else lambda: step(q, k, v, -rates, rates))


ROWS = [
    Row(f"fused_gated_delta_step / {what}, {h} heads of keys, {n} of values, width {d}",
        lambda *sizes, whole=whole: calls(whole, *sizes), (h, n, d))
    for h, n, d in SHAPES for what, whole in (("its parts", True), ("the step alone", False))
]  # fmt: skip
