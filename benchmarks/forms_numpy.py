"""Causal linear attention (elu + 1, normalised) by chunks in NumPy, as users write it by hand.

Shapes, in every ``forms_*`` file: q, k, v, g and the result (heads, n, d), n a multiple of the
chunk.  Scores within a chunk are a triangle; earlier chunks contribute through the state.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from harness import Call

CHUNKS = (32, 64, 128)
EPS = 1e-6


def rivals(operands: list[np.ndarray], backward: bool) -> dict[str, dict[str, Call]]:
    """Calls by the name of the library, of which the fastest counts; there is no backward here."""
    if backward:
        return {}
    q, k, v = operands
    return {
        "NumPy einsum": {f"chunk {c}": partial(einsum, q, k, v, c) for c in CHUNKS},
        "NumPy BLAS": {f"chunk {c}": partial(scan, q, k, v, c) for c in CHUNKS},
    }


def elu1(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def scan(q: np.ndarray, k: np.ndarray, v: np.ndarray, chunk: int) -> np.ndarray:
    """One chunk after another, three small BLAS products each; the state stays in cache."""
    q, k, out = elu1(q), elu1(k), np.empty_like(v)
    s = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    z = np.zeros((*k.shape[:-2], k.shape[-1], 1), v.dtype)
    for start in range(0, q.shape[-2], chunk):
        rows = (..., slice(start, start + chunk), slice(None))
        weights = np.tril(q[rows] @ k[rows].mT)
        den = weights.sum(-1, keepdims=True) + q[rows] @ z + EPS
        out[rows] = (weights @ v[rows] + q[rows] @ s) / den
        s += k[rows].mT @ v[rows]
        z += k[rows].sum(-2)[..., None]
    return out


def einsum(q: np.ndarray, k: np.ndarray, v: np.ndarray, chunk: int) -> np.ndarray:
    """All chunks at once, their states by a cumulative sum."""
    product = partial(np.einsum, optimize=True)
    q, k, v = (x.reshape(*x.shape[:-2], -1, chunk, x.shape[-1]) for x in (elu1(q), elu1(k), v))
    s, z = product("hcjd,hcjm->hcdm", k, v), k.sum(-2)
    s, z = s.cumsum(-3) - s, z.cumsum(-2) - z
    weights = np.tril(product("hcid,hcjd->hcij", q, k))
    num = product("hcij,hcjm->hcim", weights, v) + product("hcid,hcdm->hcim", q, s)
    den = weights.sum(-1) + product("hcid,hcd->hci", q, z) + EPS
    out = num / den[..., None]
    return out.reshape(*out.shape[:-3], -1, out.shape[-1])
