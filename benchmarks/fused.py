"""Fused steps beside the functions that they are made of, and layers' steps beside their linears.

``python benchmarks/fused.py`` prints medians of processor time with their quartiles, one thread,
float32, one sequence, interleaved pairs.  ``numpy`` compares the fused steps in place with the
functions one after another (ratios), and with the step on the memory alone; ``torch`` shows what a
step of a layer of linattn.torch.nn takes beside its projections, in microseconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from steps import pairs, quartiles

import linattn

#: Heads of keys and of values, and their widths: Qwen3-Next's, and smaller ones.
SHAPES = (1, 1, 64), (4, 8, 64), (16, 32, 128)
TAPS = 4


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def calls(h: int, n: int, d: int) -> tuple[Callable[[], object], ...]:
    """The fused gated delta step in place, its parts, and the step on the memory alone."""
    rng = np.random.default_rng(0)
    c = 2 * h * d + n * d
    x, z, weight, conv, s = (
        rng.standard_normal(shape, np.float32)
        for shape in ((1, c), (1, n * d), (c, TAPS), (1, c, TAPS - 1), (1, n, d, d))
    )
    a, b, A_log, dt_bias = (rng.standard_normal(shape, np.float32)
                            for shape in ((1, n), (1, n), n, n))  # fmt: skip
    norm = np.ones(d, np.float32)
    state = linattn.FusedState(conv, s)
    by_key = linattn.State(s.reshape(1, h, n // h, d, d))
    q, k = rng.standard_normal((2, 1, h, 1, d), np.float32)
    v = rng.standard_normal((1, h, n // h, d), np.float32)
    rates = -np.ones((1, h, n // h), np.float32)

    def fused() -> object:
        return linattn.fused_gated_delta_step(
            x, a, b, state, A_log=A_log, dt_bias=dt_bias, weight=weight, z=z, norm_weight=norm,
            scale=d**-0.5, in_place=True,
        )  # fmt: skip

    def step(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray
    ) -> object:
        return linattn.gated_delta_step(
            q, k, v, g, beta, by_key, feature_map="l2norm", scale=d**-0.5, in_place=True
        )

    def parts() -> object:
        y, _ = linattn.causal_conv1d_step(x, weight, conv, activation="silu", in_place=True)
        q, k = (y[:, i * h * d : (i + 1) * h * d].reshape(1, h, 1, d) for i in range(2))
        g = linattn.log_decay(a, A_log, dt_bias).reshape(1, h, -1)
        beta = (1 / (1 + np.exp(-b))).reshape(1, h, -1)
        o, _ = step(q, k, y[:, 2 * h * d :].reshape(1, h, -1, d), g, beta)  # type: ignore[misc]
        o = o / np.sqrt((o * o).mean(-1, keepdims=True) + 1e-6) * norm
        return o.reshape(1, -1) * silu(z)

    return fused, parts, lambda: step(q, k, v, rates, -rates)


def numpy_rows(rounds: int) -> None:
    print("fused_gated_delta_step in place; time relative to")
    for h, n, d in SHAPES:
        fused, parts, step = calls(h, n, d)
        rows = {
            name: quartiles([x / y for x, y in pairs(fused, other, rounds)])
            for name, other in (("its parts", parts), ("the step alone", step))
        }
        text = ", ".join(f"{name} {row}" for name, row in rows.items())
        print(f"{h:3} heads of keys, {n:3} of values, width {d:3}: {text}")


def torch_rows(rounds: int) -> None:
    import torch

    from linattn.torch.nn import GatedAttention, GatedDeltaNet

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("steps of layers beside their projections, microseconds")
    for dtype in (torch.float32, torch.bfloat16):
        for layer in (
            GatedDeltaNet(64, num_heads=2, num_v_heads=4, dtype=dtype),
            GatedAttention(64, num_heads=4, state_dim=16, dtype=dtype),
        ):
            x, state = torch.randn(1, 64, dtype=dtype), layer.init_state(1)
            o = torch.randn(1, layer.out_proj.in_features, dtype=dtype)
            projections = [getattr(layer, name) for name in layer._projections]

            def linears(x=x, o=o, layer=layer, projections=projections) -> object:
                return [f(x) for f in projections], layer.out_proj(o)

            with torch.no_grad():
                times = pairs(lambda x=x, s=state, f=layer: f.step(x, s), linears, rounds)
            beside = quartiles([(a - b) * 1e6 for a, b in times])
            print(f"{type(layer).__name__:15} {str(dtype)[6:]:9} {beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="both", choices=["numpy", "torch", "both"])
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    linattn.set_num_threads(1)
    if arguments.what != "torch":
        numpy_rows(arguments.rounds)
    if arguments.what != "numpy":
        torch_rows(arguments.rounds)


if __name__ == "__main__":
    main()
