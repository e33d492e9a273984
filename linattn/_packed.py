"""Packed sequences one by one, for operators without a kernel that knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from . import _check
from ._state import State


def causal(
    one: Callable, q: Any, k: Any, v: Any, cu_seqlens: Any, key_lengths: Any,
    initial_state: State | None, return_state: bool, out: np.ndarray | None,
) -> Any:  # fmt: skip
    """`one`, which is causal on one sequence, on each of them."""
    q, k, v, shape = _check.qkv("causal", q, k, v, same_length=True)
    if out is not None:
        _check.out("causal", out, shape, q, k, v)
    o, states = np.empty(shape, _check.result_dtype(q, k, v)), []
    for rows, keys, start in _sequences("causal", q, cu_seqlens, key_lengths, initial_state):
        o[rows], state = one(
            q[rows], k[rows], v[rows], key_lengths=keys, initial_state=start, return_state=True
        )
        states.append(state)
    if out is not None:
        out[...] = o
        o = out
    return (o, _stack(states)) if return_state else o


def causal_backward(
    one: Callable, q: Any, k: Any, v: Any, grad_out: Any, cu_seqlens: Any, key_lengths: Any,
    initial_state: State | None, grad_state: State | None,
) -> tuple[Any, ...]:  # fmt: skip
    """`one`, which is causal_backward on one sequence, on each of them."""
    name = "causal_backward"
    q, k, v, shape = _check.qkv(name, q, k, v, same_length=True)
    grad_out = np.broadcast_to(_check.cotangent(name, grad_out, shape), shape)
    dtype = _check.result_dtype(q, k, v)
    grads, states = tuple(np.empty(x.shape, dtype) for x in (q, k, v)), []
    for rows, keys, start, behind in _sequences(
        name, q, cu_seqlens, key_lengths, initial_state, grad_state
    ):
        *parts, state = one(
            *(x[rows] for x in (q, k, v, grad_out)),
            key_lengths=keys, initial_state=start, grad_state=behind,
        )  # fmt: skip
        if start is None and behind is None:
            parts.append(state)
        for grad, part in zip(grads, parts, strict=True):
            grad[rows] = part
        states.append(state)
    with_state = initial_state is not None or grad_state is not None
    return (*grads, _stack(states)) if with_state else grads


def _sequences(
    name: str, q: Any, cu_seqlens: Any, key_lengths: Any, *states: State | None
) -> Iterator[tuple]:
    """Of each sequence: its rows, its key_lengths, and its part of each state."""
    bounds = _check.cu_seqlens(name, cu_seqlens, q.shape[-2])
    for r, (start, stop) in enumerate(pairwise(bounds)):
        keys = key_lengths
        if keys is not None:
            keys = np.clip(np.asarray(keys) - start, 0, stop - start)
        parts = (None if x is None else _part(x, r) for x in states)
        yield (..., slice(start, stop), slice(None)), keys, *parts


def _part(x: State, r: int) -> State:
    vectors = (None if y is None else y[..., r, :] for y in x[1:])
    return State(x.s[..., r, :, :], *vectors)


def _stack(states: list[State]) -> State:
    s, *vectors = zip(*states, strict=True)
    return State(np.stack(s, -3), *(None if y[0] is None else np.stack(y, -2) for y in vectors))
