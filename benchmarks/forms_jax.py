"""Causal linear attention (elu + 1, normalised) in JAX by chunks, through jax.jit.

JAX reads its number of threads once, from NPROC, before it is imported.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from harness import Call

CHUNKS = (32, 64, 128)
EPS = 1e-6


def rivals(operands: list[np.ndarray], backward: bool) -> dict[str, dict[str, Call]]:
    """Calls by the name of the library, of which the fastest counts."""
    prepare = _both if backward else _forward
    calls = {
        f"{form.__name__}, chunk {c}": prepare(form, operands, c)
        for form in (scan, batch)
        for c in CHUNKS
    }
    return {"jax.jit": calls}


def _forward(form: Callable[..., jax.Array], operands: list[np.ndarray], chunk: int) -> Call:
    inputs = [jnp.asarray(x) for x in operands]
    jitted = jax.jit(lambda q, k, v: form(q, k, v, chunk))
    return lambda: jitted(*inputs).block_until_ready()


def _both(form: Callable[..., jax.Array], operands: list[np.ndarray], chunk: int) -> Call:
    inputs = [jnp.asarray(x) for x in operands]

    @jax.jit
    def jitted(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        out, gradient = jax.vjp(lambda *x: form(*x, chunk), q, k, v)
        return out, *gradient(g)

    return lambda: jax.block_until_ready(jitted(*inputs))


def elu1(x: jax.Array) -> jax.Array:
    return jax.nn.elu(x) + 1


def scan(q: jax.Array, k: jax.Array, v: jax.Array, chunk: int) -> jax.Array:
    """One chunk after another by lax.scan; the state stays in cache."""
    heads, n, d = q.shape
    m = v.shape[-1]
    chunks = [jnp.moveaxis(x.reshape(heads, -1, chunk, x.shape[-1]), 1, 0) for x in (q, k, v)]

    def step(state: tuple[jax.Array, jax.Array], rows: list[jax.Array]):
        (s, z), (a, b, c) = state, rows
        a, b = elu1(a), elu1(b)
        weights = jnp.tril(a @ b.mT)
        den = weights.sum(-1) + jnp.einsum("hid,hd->hi", a, z) + EPS
        out = (weights @ c + a @ s) / den[..., None]
        return (s + b.mT @ c, z + b.sum(-2)), out

    start = jnp.zeros((heads, d, m), v.dtype), jnp.zeros((heads, d), v.dtype)
    _, out = jax.lax.scan(step, start, chunks)
    return jnp.moveaxis(out, 0, 1).reshape(heads, n, m)


def batch(q: jax.Array, k: jax.Array, v: jax.Array, chunk: int) -> jax.Array:
    """All chunks at once, their states by a cumulative sum."""
    heads, n, _ = q.shape
    q, k, v = (x.reshape(heads, -1, chunk, x.shape[-1]) for x in (elu1(q), elu1(k), v))
    s, z = k.mT @ v, k.sum(-2)
    s, z = jnp.cumsum(s, 1) - s, jnp.cumsum(z, 1) - z
    weights = jnp.tril(q @ k.mT)
    num = weights @ v + q @ s
    den = weights.sum(-1) + jnp.einsum("hcid,hcd->hci", q, z) + EPS
    return (num / den[..., None]).reshape(heads, n, -1)
