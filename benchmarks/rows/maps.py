"""Feature maps, Linformer and softmax attention against what they replace."""

from __future__ import annotations

from functools import partial

import numpy as np

import linattn
from linattn import feature_maps as maps
from linattn._cli.peers import PyTorch
from linattn._cli.rows import HEADS8, Calls, Row
from linattn._core.gufuncs import internal_ufuncs


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


def dpfp(x: np.ndarray, nu: int = 2) -> np.ndarray:
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    y = np.concatenate([r * np.roll(r, i, -1) for i in range(1, nu + 1)], -1)
    return y / (y.sum(-1, keepdims=True) + np.float32(1e-6))


def pass_of(name: str, form, operands: int, *shape: int) -> Calls:
    """A fused pass over arrays against the NumPy expression that it replaces."""
    arrays = [normal(*shape, seed=i) for i in range(operands)]
    ours = partial(internal_ufuncs[name], *arrays, out=np.empty_like(arrays[0]))
    return Calls(ours, partial(form, *arrays), form(*(x.astype(float) for x in arrays)))


def projected(name: str, form, results: int, heads: int, n: int, d: int) -> Calls:
    """Features of random projections, the product included."""
    x, one = normal(heads * n, d), np.eye(d, dtype=np.float32)
    out = tuple(np.split(np.empty((len(x), results * d), np.float32), results, 1))
    ours = partial(internal_ufuncs[name], x, one, np.float32(1), out=out)
    return Calls(ours, lambda: form(x, x @ one) / np.float32(np.sqrt(d)))


def in_numpy(*shape: int) -> Calls:
    x = normal(*shape)
    return Calls(partial(maps.DPFP(nu=2), x), partial(dpfp, x), dpfp(x.astype(float)))


def random_features(name: str, *shape: int) -> Calls:
    count = 4 if name.endswith("backward") else 3
    call = partial(getattr(linattn, name), *(normal(*shape, seed=i) for i in range(count)))
    phi = maps.PositiveRandomFeatures.sample(shape[-1], shape[-1])
    return Calls(partial(call, feature_map=phi), call)


def softmax(causal: bool, reverse: bool, *shape: int) -> Calls:
    q, k, v, g = operands = [normal(1, *shape, seed=i) for i in range(4)]

    def form(torch, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def ours() -> tuple[np.ndarray, ...]:
        o = linattn.softmax_attention(q, k, v, causal=causal)
        grads = linattn.softmax_attention_backward(q, k, v, g, causal=causal) if reverse else ()
        return o, *grads

    theirs = PyTorch.call(form, operands, reverse)
    return Calls(ours, theirs, ours())


def linformer(heads: int, n: int, d: int, r: int) -> Calls:
    x, y, z = (normal(heads, n, d, seed=i) for i in range(3))
    E = normal(n, r) / np.float32(np.sqrt(n))

    def form(torch, q, k, v, e):
        return torch.softmax(q @ (e.mT @ k).mT / d**0.5, -1) @ (e.mT @ v)

    ours = partial(linattn.linformer, x, y, z, E, E)
    return Calls(ours, PyTorch.call(form, [x, y, z, E, E]), ours())


#: Elementwise passes are held to a third of the time of the NumPy expressions.
THIRD = 0.33
PASSES = (
    ("softplus / NumPy", "softplus", softplus, 1),
    ("softplus(a) sigmoid(b) / NumPy", "softplus_gate",
     lambda a, b: softplus(a) * sigmoid(b), 2),
)  # fmt: skip
ROWS = [
    *(Row(name, partial(pass_of, *how), goal=THIRD) for name, *how in PASSES),
    Row("exp(u - h) / sqrt m, product included / NumPy",
        partial(projected, "positive_features",
                lambda x, u: np.exp(u - (x**2).sum(-1, keepdims=True) / 2), 1), goal=THIRD),
    Row("[sin u, cos u] / sqrt m, product included / NumPy",
        partial(projected, "fourier_features",
                lambda _, u: np.concatenate([np.sin(u), np.cos(u)], -1), 2), goal=THIRD),
    Row("DPFP, nu = 2 / NumPy", in_numpy, goal=THIRD),
    Row("causal, 64 positive random features / elu", partial(random_features, "causal"), goal=2.2),
    Row("causal_backward, 64 positive random features / elu",
        partial(random_features, "causal_backward")),
    *(Row(f"softmax_attention{' and its gradient' * reverse}, causal={causal} / PyTorch's SDPA",
          partial(softmax, causal, reverse), HEADS8, [PyTorch], goal)
      for causal, reverse, goal in ((True, False, 1.3), (False, False, None), (True, True, None))),
    Row("linformer, r = 256, N = 8192 / PyTorch, eager", linformer, (8, 8192, 64, 256), [PyTorch],
        0.5),
]  # fmt: skip
