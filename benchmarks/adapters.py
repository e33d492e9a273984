"""Adapters of libraries that only benchmarks need, and forms of the delta rule and of scans."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linattn._cli.bench import by_hand
from linattn._cli.peers import EPS, Array, Call, Form, Library, NumPy, Peer, PyTorch, elu1, scan
from linattn._cli.rows import Calls

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

CHUNKS = (32, 64, 128)


def peer(*packages: str) -> type[Peer]:
    """An adapter that only says what it needs."""
    return type(packages[0], (Peer,), {"name": packages[0], "packages": packages})


SCIPY, ML_DTYPES, FLA = peer("scipy"), peer("ml_dtypes"), peer("fla", "torch")


class Transformers(PyTorch):
    """The tensor code that its models call without a GPU."""

    name, packages = "Transformers", ("torch", "transformers")

    @staticmethod
    def module(family: str) -> Any:
        # It hides fla, whose GPU kernels models would call.
        return importlib.import_module("transformers_models").module(family)


class Compiled(PyTorch):
    """PyTorch's compiler, without the loop over chunks, which it would unroll in minutes."""

    name = "torch.compile"

    @classmethod
    def call(cls, form: Form, operands: Sequence[np.ndarray], backward: bool = False) -> Call:
        torch = importlib.import_module("torch")
        compiled = torch.compile(partial(form, torch), dynamic=False)
        return PyTorch.call(lambda _, *x: compiled(*x), operands, backward)


class JAX(Library):
    name, packages = "jax.jit", ("jax",)

    @classmethod
    def call(cls, form: Form, operands: Sequence[np.ndarray], backward: bool = False) -> Call:
        jax = importlib.import_module("jax")
        *inputs, grad_out = map(jax.numpy.asarray, operands)

        def both(g: Array, *x: Array) -> tuple[Array, ...]:
            o, gradient = jax.vjp(partial(form, jax.numpy), *x)
            return o, *gradient(g)

        jitted = jax.jit(both if backward else lambda g, *x: (form(jax.numpy, *x),))
        return lambda: jax.block_until_ready(jitted(grad_out, *inputs))


def at_once(xp: Any, q: Array, k: Array, v: Array, chunk: int) -> Array:
    """Causal attention, all chunks at once, their states by a cumulative sum."""
    einsum = partial(np.einsum, optimize=True) if xp is np else xp.einsum
    shape = v.shape
    q, k, v = (x.reshape(len(v), -1, chunk, x.shape[-1]) for x in (elu1(xp, q), elu1(xp, k), v))
    s, z = einsum("hcjd,hcjm->hcdm", k, v), k.sum(-2)
    s, z = s.cumsum(1) - s, z.cumsum(1) - z
    weights = xp.tril(einsum("hcid,hcjd->hcij", q, k))
    num = einsum("hcij,hcjm->hcim", weights, v) + einsum("hcid,hcdm->hcim", q, s)
    den = weights.sum(-1) + einsum("hcid,hcd->hci", q, z) + EPS
    return (num / den[..., None]).reshape(shape)


def scan_in_jax(xp: Any, q: Array, k: Array, v: Array, chunk: int) -> Array:
    """Chunk by chunk, by lax.scan, which is compiled once for all chunks."""
    lax, (heads, n, m) = importlib.import_module("jax.lax"), v.shape
    chunks = [
        xp.moveaxis(x.reshape(heads, -1, chunk, x.shape[-1]), 1, 0)
        for x in (elu1(xp, q), elu1(xp, k), v)
    ]

    def step(state: tuple[Array, Array], rows: list[Array]) -> Any:
        (s, z), (a, b, c) = state, rows
        weights = xp.tril(a @ b.mT)
        den = weights.sum(-1) + xp.einsum("hid,hd->hi", a, z) + EPS
        return (s + b.mT @ c, z + b.sum(-2)), (weights @ c + a @ s) / den[..., None]

    start = xp.zeros((heads, q.shape[-1], m), v.dtype), xp.zeros((heads, q.shape[-1]), v.dtype)
    return xp.moveaxis(lax.scan(step, start, chunks)[1], 0, 1).reshape(heads, n, m)


#: Of causal attention, by library: the fastest form and chunk length counts.
FORMS: dict[str, tuple[Any, tuple[tuple[str, Form], ...]]] = {
    "NumPy BLAS": (NumPy, (("scan, ", scan),)),
    "PyTorch eager": (PyTorch, (("scan, ", scan), ("batch, ", at_once))),
    "torch.compile": (Compiled, (("batch, ", at_once),)),
    "jax.jit": (JAX, (("scan, ", scan_in_jax), ("batch, ", at_once))),
}


def by_chunk(
    peer: Any, forms: Sequence[tuple[str, Form]], chunks: Sequence[int], *sizes: Any, **what: Any
) -> Calls:
    """The forms with every chunk length, of which the fastest counts, and linattn's call."""
    pairs = {
        f"{label}chunk {c}": by_hand(peer, *sizes, form=partial(form, chunk=c), **what)
        for label, form in forms
        for c in chunks
    }
    return next(iter(pairs.values()))._replace(a={x: pair.a for x, pair in pairs.items()})


# The delta rule in PyTorch: q, k, v (heads, n, d), beta (heads, n).


def prepare(torch: Any, q: Array, k: Array, v: Array, beta: Array) -> tuple[Array, ...]:
    """For every chunk: W = T K, U = T V with T = (I + stril(diag(beta) K K^T))^-1 diag(beta)."""
    beta = beta.unsqueeze(-1)
    system = (beta * (k @ k.mT)).tril(-1) + torch.eye(k.shape[-2])
    right = torch.cat((beta * k, beta * v), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False)
    return *solved.split((k.shape[-1], v.shape[-1]), -1), (q @ k.mT).tril()


def advance(s: Array, q: Array, k: Array, w: Array, u: Array, scores: Array) -> tuple[Array, Array]:
    """One chunk: its outputs, and the state after it."""
    u = u - w @ s
    return q @ s + scores @ u, s + k.mT @ u


def wy(
    torch: Any, q: Array, k: Array, v: Array, beta: Array, chunk: int,
    stages: tuple[Callable, Callable] | None = None,
) -> Array:  # fmt: skip
    """The WY form: all triangular solves at once, then one chunk after another."""
    first, step = stages or (partial(prepare, torch), advance)
    q, k, v = (x.unflatten(-2, (-1, chunk)) for x in (q, k, v))
    w, u, scores = first(q, k, v, beta.unflatten(-1, (-1, chunk)))
    s = q.new_zeros(*k.shape[:-3], k.shape[-1], v.shape[-1])
    rows = []
    for parts in zip(*(x.unbind(-3) for x in (q, k, w, u, scores)), strict=True):
        o, s = step(s, *parts)
        rows.append(o)
    return torch.cat(rows, -2)


def compiled_wy(torch: Any, *operands: Array, chunk: int) -> Array:
    """Its two stages compiled; the loop over chunks would be unrolled, which takes minutes."""
    return wy(torch, *operands, chunk, stages=_stages(torch))


@functools.cache
def _stages(torch: Any) -> tuple[Callable, Callable]:
    first, step = (torch.compile(f, dynamic=False) for f in (partial(prepare, torch), advance))
    return first, step
