"""Feature maps, Linformer and softmax attention against what they replace.

Each figure is a ratio within one run.  One thread, float32, 8 heads, N = 4096, d = m = 64 unless
the row says otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from harness import Call, threads
from report import Report, options
from state import ratio

import linattn
from linattn import feature_maps as maps
from linattn._core.gufuncs import internal_ufuncs

HEADS, N, D = 8, 4096, 64
#: Elementwise passes are held to a third of the time of the NumPy expressions.
THIRD = 0.33
#: Of a row: what it compares, linattn, the other, and the largest ratio wanted.
Pair = tuple[str, Call, Call, float | None]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


def dpfp(x: np.ndarray, nu: int = 2) -> np.ndarray:
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    y = np.concatenate([r * np.roll(r, i, -1) for i in range(1, nu + 1)], -1)
    return y / (y.sum(-1, keepdims=True) + np.float32(1e-6))


def elementwise() -> Iterator[Pair]:
    """Fused passes against the NumPy expressions that they replace, without the product."""
    a, b, g, o = (draw(HEADS, N, D, seed=i) for i in range(4))
    tall = [np.ascontiguousarray(x.reshape(-1, D)) for x in (a, b, g)]
    wide, root = np.empty((HEADS * N, 2 * D), np.float32), np.float32(np.sqrt(D))
    one = np.eye(D, dtype=np.float32)
    yield (
        "softplus / NumPy",
        lambda: internal_ufuncs["softplus"](a, out=o),
        lambda: softplus(a),
        THIRD,
    )
    yield "sigmoid / NumPy", lambda: internal_ufuncs["sigmoid"](a, out=o), lambda: sigmoid(a), THIRD
    yield (
        "softplus(a) sigmoid(b) / NumPy",
        lambda: internal_ufuncs["softplus_gate"](a, b, out=o),
        lambda: softplus(a) * sigmoid(b),
        THIRD,
    )
    yield (
        "gradient of a sigmoid(b) / NumPy",
        lambda: internal_ufuncs["gate_backward"](a, b, g),
        lambda: (g * sigmoid(b), g * a * sigmoid(b) * sigmoid(-b)),
        THIRD,
    )
    yield (
        "exp(u - h) / sqrt m, product included / NumPy",
        lambda: internal_ufuncs["positive_features"](
            tall[0], one, np.float32(1), out=o.reshape(-1, D)
        ),
        lambda: np.exp(tall[0] @ one - (tall[0] ** 2).sum(-1, keepdims=True) / 2) / root,
        THIRD,
    )
    yield (
        "[sin u, cos u] / sqrt m, product included / NumPy",
        lambda: internal_ufuncs["fourier_features"](
            tall[0], one, np.float32(1), out=(wide[:, :D], wide[:, D:])
        ),
        lambda: np.concatenate([np.sin(u := tall[0] @ one), np.cos(u)], -1) / root,
        THIRD,
    )
    phi = maps.DPFP(nu=2)
    yield "DPFP, nu = 2 / NumPy", lambda: phi(a), lambda: dpfp(a), THIRD


def attention() -> Iterator[Pair]:
    q, k, v, g = (draw(HEADS, N, D, seed=i) for i in range(4))
    phi = maps.PositiveRandomFeatures.sample(D, D)
    out = np.empty_like(v)
    yield (
        "causal, 64 positive random features / elu",
        lambda: linattn.causal(q, k, v, feature_map=phi, out=out),
        lambda: linattn.causal(q, k, v, out=out),
        2.2,
    )
    yield (
        "causal_backward, 64 positive random features / elu",
        lambda: linattn.causal_backward(q, k, v, g, feature_map=phi),
        lambda: linattn.causal_backward(q, k, v, g),
        None,
    )


def against_torch() -> Iterator[Pair]:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v, g = (draw(1, HEADS, N, D, seed=i) for i in range(4))
    tq, tk, tv, tg = (torch.from_numpy(x) for x in (q, k, v, g))
    for causal in (True, False):
        yield (
            f"softmax_attention, causal={causal} / PyTorch's SDPA",
            lambda causal=causal: linattn.softmax_attention(q, k, v, causal=causal),
            lambda causal=causal: sdpa(tq, tk, tv, is_causal=causal),
            1.3 if causal else None,
        )
    leaves = [x.clone().requires_grad_() for x in (tq, tk, tv)]

    def both():
        linattn.softmax_attention(q, k, v, causal=True)
        linattn.softmax_attention_backward(q, k, v, g, causal=True)

    yield (
        "softmax_attention and its gradient, causal=True / PyTorch's SDPA",
        both,
        lambda: sdpa(*leaves, is_causal=True).backward(tg),
        None,
    )
    x, y, z = (draw(HEADS, 8192, D, seed=i) for i in range(3))
    E = draw(8192, 256) / 90
    tx, ty, tz, te = (torch.from_numpy(w) for w in (x, y, z, E))
    yield (
        "linformer, r = 256, N = 8192 / PyTorch, eager",
        lambda: linattn.linformer(x, y, z, E, E),
        lambda: torch.softmax(tx @ (te.mT @ ty).mT / 8, -1) @ (te.mT @ tz),
        0.5,
    )


def main() -> int:
    args = options(__doc__).parse_args()
    report = Report("Feature maps, Linformer and softmax attention", args)
    with threads(1):
        for pairs in (elementwise, attention, against_torch):
            for what, a, b, target in pairs():
                detail = "{:.2f} against {:.2f} ms"
                ratio(report, what, a, b, 3 if args.quick else 11, target, detail)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
