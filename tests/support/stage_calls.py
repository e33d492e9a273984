"""Calls of the operators that may be computed in stages (`src/ext/stages.c`)."""

import numpy as np

import linattn

OPERANDS = {
    "causal": "qkv",
    "gated": "qkvg",
    "delta": "qkvB",
    "gated_delta": "qkvgB",
    "dplr": "qkvabg",
}
WIDTHS = [(1, 1), (5, 9), (16, 33), (70, 130), (64, 64)]


def make(name, lead, n, d, m, dtype="f4"):
    """Operands of an operator."""
    rng = np.random.default_rng(n + d)
    operands = {
        "q": rng.standard_normal((*lead, n, d)),
        "k": rng.standard_normal((*lead, n, d)) / np.sqrt(d),
        "v": rng.standard_normal((*lead, n, m)),
        "B": rng.random((*lead, n)),
        "a": rng.standard_normal((*lead, n, d)) / d,
        "b": rng.standard_normal((*lead, n, d)),
        "g": -np.exp(rng.standard_normal((*lead, n)) - 2),
    }
    return [operands[x].astype(dtype) for x in OPERANDS[name]]


def start(name, lead, d, m, dtype="f4", **options):
    """A state that is not zero."""
    f = getattr(linattn, name)
    return f(*make(name, lead, 7, d, m, dtype), return_state=True, **options)[1]


def with_gradients(name, operands, rng, **options):
    """Operands of the backward operator, and the gradient of its last state."""
    o, state = getattr(linattn, name)(*operands, return_state=True, **options)
    grad_state = type(state)(
        *(None if x is None else rng.standard_normal(x.shape).astype(x.dtype) for x in state)
    )
    return [*operands, rng.standard_normal(o.shape).astype(o.dtype)], grad_state
