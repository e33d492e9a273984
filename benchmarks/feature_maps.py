"""Feature maps, Linformer and softmax attention against what they replace, on one thread.

    OPENBLAS_NUM_THREADS=1 python benchmarks/feature_maps.py [rounds]

Each line: the two medians in ms, and the median ratio of neighbours in interleaved pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from harness import Call, interleave
from linattn._linattn import tasks
from threadpoolctl import threadpool_limits

import linattn
from linattn import feature_maps as maps

HEADS, N, D = 8, 4096, 64


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


def elementwise() -> Iterator[tuple[str, Call, Call]]:
    """Fused passes and the NumPy expressions that they replace, the product left out."""
    a, b, g, o = (draw(HEADS, N, D, seed=i) for i in range(4))
    tall = [np.ascontiguousarray(x.reshape(-1, D)) for x in (a, b, g)]
    wide, root = np.empty((HEADS * N, 2 * D), np.float32), np.float32(np.sqrt(D))
    one = np.eye(D, dtype=np.float32)
    yield "softplus", lambda: tasks["softplus"](a, out=o), lambda: softplus(a)
    yield "sigmoid", lambda: tasks["sigmoid"](a, out=o), lambda: sigmoid(a)
    yield (
        "softplus(a) sigmoid(b)",
        lambda: tasks["softplus_gate"](a, b, out=o),
        lambda: softplus(a) * sigmoid(b),
    )
    yield (
        "gradient of a sigmoid(b)",
        lambda: tasks["gate_backward"](a, b, g),
        lambda: (g * sigmoid(b), g * a * sigmoid(b) * sigmoid(-b)),
    )
    yield (
        "exp(u - h) / sqrt m, product included",
        lambda: tasks["positive_features"](tall[0], one, np.float32(1), out=o.reshape(-1, D)),
        lambda: np.exp(tall[0] @ one - (tall[0] ** 2).sum(-1, keepdims=True) / 2) / root,
    )
    yield (
        "[sin u, cos u] / sqrt m, product included",
        lambda: tasks["fourier_features"](
            tall[0], one, np.float32(1), out=(wide[:, :D], wide[:, D:])
        ),
        lambda: np.concatenate([np.sin(u := tall[0] @ one), np.cos(u)], -1) / root,
    )
    phi = maps.DPFP(nu=2)
    yield "DPFP, nu = 2", lambda: phi(a), lambda: dpfp(a)


def attention() -> Iterator[tuple[str, Call, Call]]:
    q, k, v, g = (draw(HEADS, N, D, seed=i) for i in range(4))
    phi = maps.PositiveRandomFeatures.sample(D, D)
    out = np.empty_like(v)
    yield (
        "causal, 64 positive random features : elu",
        lambda: linattn.causal(q, k, v, feature_map=phi, out=out),
        lambda: linattn.causal(q, k, v, out=out),
    )
    yield (
        "its gradient : that of elu",
        lambda: linattn.causal_backward(q, k, v, g, feature_map=phi),
        lambda: linattn.causal_backward(q, k, v, g),
    )


def against_torch() -> Iterator[tuple[str, Call, Call]]:
    import torch

    torch.set_num_threads(1)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v, g = (draw(1, HEADS, N, D, seed=i) for i in range(4))
    tq, tk, tv, tg = (torch.from_numpy(x) for x in (q, k, v, g))
    for causal in (True, False):
        yield (
            f"softmax_attention, causal={causal} : SDPA",
            lambda causal=causal: linattn.softmax_attention(q, k, v, causal=causal),
            lambda causal=causal: sdpa(tq, tk, tv, is_causal=causal),
        )
    leaves = [x.clone().requires_grad_() for x in (tq, tk, tv)]

    def both():
        linattn.softmax_attention(q, k, v, causal=True)
        linattn.softmax_attention_backward(q, k, v, g, causal=True)

    yield (
        "the same with its gradient, causal",
        both,
        lambda: sdpa(*leaves, is_causal=True).backward(tg),
    )
    x, y, z = (draw(HEADS, 8192, D, seed=i) for i in range(3))
    E = draw(8192, 256) / 90
    tx, ty, tz, te = (torch.from_numpy(w) for w in (x, y, z, E))
    yield (
        "linformer, r = 256, N = 8192 : eager",
        lambda: linattn.linformer(x, y, z, E, E),
        lambda: torch.softmax(tx @ (te.mT @ ty).mT / 8, -1) @ (te.mT @ tz),
    )


def main(rounds: int) -> None:
    linattn.set_num_threads(1)
    with threadpool_limits(1, user_api="blas"):
        for title, calls in (
            ("elementwise work : NumPy", elementwise),
            ("attention", attention),
            ("PyTorch", against_torch),
        ):
            print(f"{title}\n{'':45} {'ms':>9} {'ms':>9} {'ratio':>7}")
            for name, ours, theirs in calls():
                pair = interleave(ours, theirs, rounds)
                print(f"{name:45} {1e3 * pair.a:9.2f} {1e3 * pair.b:9.2f} {pair.ratio:7.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
