"""Causal linear attention (elu + 1, normalised) in PyTorch by chunks, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from harness import Call

CHUNKS = (32, 64, 128)
EPS = 1e-6


def rivals(operands: list[np.ndarray], backward: bool) -> dict[str, dict[str, Call]]:
    """Calls by the name of the library, of which the fastest counts."""
    torch.compiler.reset()
    # The loop of `scan` is unrolled by the compiler, which then takes minutes.
    compiled = torch.compile(batch, dynamic=False)
    prepare = _both if backward else _forward
    return {
        "PyTorch eager": {
            f"{form.__name__}, chunk {c}": prepare(partial(form, chunk=c), operands)
            for form in (batch, scan)
            for c in CHUNKS
        },
        "torch.compile": {
            f"batch, chunk {c}": prepare(partial(compiled, chunk=c), operands) for c in CHUNKS
        },
    }


def _forward(form: Callable[..., torch.Tensor], operands: list[np.ndarray]) -> Call:
    q, k, v = map(torch.from_numpy, operands)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return form(q, k, v)

    return call


def _both(form: Callable[..., torch.Tensor], operands: list[np.ndarray]) -> Call:
    *inputs, g = map(torch.from_numpy, operands)
    inputs = [x.requires_grad_() for x in inputs]

    def call() -> tuple[torch.Tensor, ...]:
        out = form(*inputs)
        return out.detach(), *torch.autograd.grad(out, inputs, g)

    return call


def elu1(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x) + 1


def scan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int) -> torch.Tensor:
    """One chunk after another; the state stays in cache."""
    q, k, rows = elu1(q), elu1(k), []
    s = q.new_zeros(*k.shape[:-2], k.shape[-1], v.shape[-1])
    z = q.new_zeros(*k.shape[:-2], k.shape[-1], 1)
    for a, b, c in zip(q.split(chunk, -2), k.split(chunk, -2), v.split(chunk, -2), strict=True):
        weights = (a @ b.mT).tril()
        rows.append((weights @ c + a @ s) / (weights.sum(-1, keepdim=True) + a @ z + EPS))
        s = s + b.mT @ c
        z = z + b.sum(-2).unsqueeze(-1)
    return torch.cat(rows, -2)


def batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int) -> torch.Tensor:
    """All chunks at once, their states by a cumulative sum."""
    q, k, v = (x.unflatten(-2, (-1, chunk)) for x in (elu1(q), elu1(k), v))
    s, z = k.mT @ v, k.sum(-2)
    s, z = s.cumsum(-3) - s, z.cumsum(-2) - z
    weights = (q @ k.mT).tril()
    num = weights @ v + q @ s
    den = weights.sum(-1, keepdim=True) + q @ z.unsqueeze(-1) + EPS
    return (num / den).flatten(-3, -2)
