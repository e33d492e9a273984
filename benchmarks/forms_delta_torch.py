"""The delta rule in PyTorch: token by token, and by chunks in the WY form, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from harness import Call

CHUNKS = (32, 64)
Form = Callable[..., torch.Tensor]


def rivals(operands: list[np.ndarray], backward: bool) -> dict[str, dict[str, Call]]:
    """Calls by the name of the form, of which the fastest counts; operands q, k, v, beta, g."""
    torch.compiler.reset()
    # The loop over chunks would be unrolled, which takes minutes: its two stages are compiled.
    stages = [torch.compile(f, dynamic=False) for f in (prepare, advance)]
    call = both if backward else forward
    return {
        "PyTorch, token by token": {"recurrence": call(recurrence, operands)},
        "PyTorch, chunked": {
            f"chunk {c}": call(partial(chunked, chunk=c), operands) for c in CHUNKS
        },
        "torch.compile, chunked": {
            f"chunk {c}": call(partial(chunked, chunk=c, stages=stages), operands) for c in CHUNKS
        },
    }


def forward(form: Form, operands: list[np.ndarray]) -> Call:
    """The output; the last operand, the cotangent, is not used."""
    inputs = [torch.from_numpy(x) for x in operands[:-1]]

    def call() -> torch.Tensor:
        with torch.no_grad():
            return form(*inputs)

    return call


def both(form: Form, operands: list[np.ndarray]) -> Call:
    """The output, and the gradient of each operand but the last."""
    *inputs, g = map(torch.from_numpy, operands)
    inputs = [x.clone().requires_grad_() for x in inputs]

    def call() -> tuple[torch.Tensor, ...]:
        out = form(*inputs)
        return out.detach(), *torch.autograd.grad(out, inputs, g)

    return call


def recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """The equation itself, all heads at once."""
    s = q.new_zeros(*k.shape[:-2], k.shape[-1], v.shape[-1])
    rows = []
    for a, b, x, w in zip(*(x.unbind(-2) for x in (q, k, v, beta.unsqueeze(-1))), strict=True):
        error = x - (b.unsqueeze(-2) @ s).squeeze(-2)
        s = s + b.unsqueeze(-1) * (w * error).unsqueeze(-2)
        rows.append((a.unsqueeze(-2) @ s).squeeze(-2))
    return torch.stack(rows, -2)


def prepare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """For every chunk: W = T K, U = T V with T = (I + stril(diag(beta) K K^T))^-1 diag(beta)."""
    beta = beta.unsqueeze(-1)
    system = (beta * (k @ k.mT)).tril(-1) + torch.eye(k.shape[-2])
    right = torch.cat((beta * k, beta * v), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False)
    return *solved.split((k.shape[-1], v.shape[-1]), -1), (q @ k.mT).tril()


def advance(s, q, k, w, u, scores):
    """One chunk: its outputs, and the state after it."""
    u = u - w @ s
    return q @ s + scores @ u, s + k.mT @ u


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
    stages: list[Callable] | None = None,
) -> torch.Tensor:
    """All triangular solves at once, then one chunk after another."""
    first, step = stages or (prepare, advance)
    q, k, v = (x.unflatten(-2, (-1, chunk)) for x in (q, k, v))
    w, u, scores = first(q, k, v, beta.unflatten(-1, (-1, chunk)))
    s = q.new_zeros(*k.shape[:-3], k.shape[-1], v.shape[-1])
    rows = []
    for parts in zip(*(x.unbind(-3) for x in (q, k, w, u, scores)), strict=True):
        o, s = step(s, *parts)
        rows.append(o)
    return torch.cat(rows, -2)
