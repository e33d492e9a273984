"""Positive random features that rescale as they go, for the normalised operators.

src/kernel/running.h has the equations.  A state holds ``s`` and ``z`` divided by
``2**(96 * rint(log_scale / (96 * log(2))))`` feature by feature, where ``log_scale (..., f)``
is the largest exponent of a key so far: a function of the prefix alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import _check, _packed, attention, backward
from ._linattn import tasks
from ._state import State
from .feature_maps import PositiveRandomFeatures

BITS = 96  #: a state's scale moves by so many powers of two, see STEP_HIGH in running.h
BLOCK = 1024  #: tokens mapped at a time


class _Segment(NamedTuple):
    """Tokens under one scale: indices of heads, tokens, features, the start and its factor."""

    head: Any
    tokens: slice
    a: np.ndarray
    b: np.ndarray
    start: State
    factor: np.ndarray


class _Call:
    """The operands of one causal call, broadcast over the heads."""

    def __init__(self, name, phi, q, k, v, grad_out, key_lengths, state) -> None:
        q, k, v, shape = _check.qkv(name, q, k, v, same_length=True)
        self.dtype = _check.result_dtype(q, k, v)
        self.batch, self.n, self.shape = shape[:-2], shape[-2], shape
        self.q, self.k, self.v = (
            np.broadcast_to(np.asarray(x, self.dtype), (*self.batch, *x.shape[-2:]))
            for x in (q, k, v)
        )
        self.grad = None
        if grad_out is not None:
            self.grad = np.broadcast_to(
                np.asarray(_check.cotangent(name, grad_out, shape), self.dtype), shape
            )
        self.phi, self.f = phi, phi.features(q.shape[-1])
        _, self.omega, self.factor = phi._operands(np.zeros((1, q.shape[-1]), self.dtype))
        lengths = self.n if key_lengths is None else key_lengths
        lengths = _check.key_lengths(name, lengths, self.n, self.batch)
        self.keys = np.broadcast_to(lengths, self.batch)
        self.state = self._start(name, state)

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.q, self.k, self.v, *self.state

    def _start(self, name: str, state: State | None) -> State:
        core = (self.f, self.shape[-1])
        if state is None:
            return State(
                np.zeros((*self.batch, *core), self.dtype),
                np.zeros((*self.batch, self.f), self.dtype),
                np.full((*self.batch, self.f), -np.inf, self.dtype),
            )
        plain = State(state.s, state.z)
        s, z = _check.state(name, "initial_state", plain, self.batch, core, self.dtype, True)
        top = state.log_scale
        if top is None:
            with np.errstate(divide="ignore"):
                top = np.log(z)
        return State(*(np.broadcast_to(x, (*self.batch, *x.shape[x.ndim - i :]))
                       for x, i in ((s, 2), (z, 1), (np.asarray(top, self.dtype), 1))))  # fmt: skip

    def segments(
        self, operator: Callable, o: np.ndarray | None, block: int, options: dict
    ) -> Iterator:
        """Runs the operator over all segments, writing o; yields each; ends with self.state."""
        state = self.state
        # A forward call has no use for a block behind it, and maps into the same memory.
        room = (
            ()
            if o is None
            else tuple(
                np.empty((*self.batch, min(block, self.n), self.f), self.dtype) for _ in range(2)
            )
        )
        for first in range(0, self.n, block):
            tokens = slice(first, min(first + block, self.n))
            into = tuple(x[..., : tokens.stop - first, :] for x in room)
            a, b, top, rows = self._features((), tokens, state.log_scale, into)
            if (rows == tokens.stop - first).all():
                state, segment = self._run(operator, (), tokens, a, b, state, top, o, options)
                yield segment
                continue
            state = State(*(np.array(x) for x in state))
            for head in np.ndindex(self.batch):
                yield from self._head(operator, head, tokens, state, o, options)
        self.state = state

    def _head(self, operator, head, tokens, states, o, options) -> Iterator[_Segment]:
        """The segments of one head; its state is updated in `states`."""
        state, first = State(*(x[head] for x in states)), tokens.start
        while first < tokens.stop:
            rest = slice(first, tokens.stop)
            a, b, top, rows = self._features(head, rest, state.log_scale)
            done = slice(first, first + int(rows))
            a, b = a[: int(rows)], b[: int(rows)]
            state, segment = self._run(operator, head, done, a, b, state, top, o, options)
            yield segment
            first = done.stop
        for x, y in zip(states, state, strict=True):
            x[head] = y

    def _features(self, head: Any, tokens: slice, top: np.ndarray, into: tuple = ()) -> tuple:
        rows = (*head, ..., tokens, slice(None))
        keys = self.keys_in(head, tokens)
        return tasks["running_features"](
            self.q[rows], self.k[rows], self.omega, self.factor, keys.astype(self.dtype), top,
            out=(*(into or (None, None)), None, None),
        )  # fmt: skip

    def keys_in(self, head: Any, tokens: slice) -> np.ndarray:
        """How many of the tokens have keys."""
        return np.clip(self.keys[head] - tokens.start, 0, tokens.stop - tokens.start)

    def _run(self, operator, head, tokens, a, b, state, top, o, options) -> tuple:
        """One segment: rescales the state, computes its rows of o, and gives the state behind."""
        factor = _factor(state.log_scale, top)
        start = State(state.s * factor[..., None], state.z * factor)
        segment = _Segment(head, tokens, a, b, start, factor)
        if o is None and tokens.stop == self.n:
            return State(start.s, start.z, top), segment  # a gradient needs no later state
        rows = (*head, ..., tokens, slice(None))
        _, end = operator(
            a, b, self.v[rows], feature_map="identity", key_lengths=self.keys_in(head, tokens),
            initial_state=start, return_state=True, out=None if o is None else o[rows], **options,
        )  # fmt: skip
        return State(end.s, end.z, top), segment


def causal(
    operator: Callable, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    return_state: bool = False, out: np.ndarray | None = None, **options: Any,
) -> Any:  # fmt: skip
    """`linattn.causal` with positive random features and a normaliser."""
    if cu_seqlens is not None:
        return _packed.causal(
            partial(causal, operator, phi, **options), q, k, v, cu_seqlens, key_lengths,
            initial_state, return_state, out,
        )  # fmt: skip
    call = _Call("causal", phi, q, k, v, None, key_lengths, initial_state)
    if out is not None:
        _check.out("causal", out, call.shape, call.q, call.k, call.v)
    direct = out is not None and not any(np.may_share_memory(out, x) for x in call.operands)
    o = out if direct else np.empty(call.shape, call.dtype)
    for _ in call.segments(operator, o, BLOCK, options):
        pass
    if out is not None and not direct:
        out[...] = o
        o = out
    return (o, call.state) if return_state else o


def step(
    operator: Callable, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, state: State, *,
    in_place: bool = False, **options: Any,
) -> tuple[np.ndarray, State]:  # fmt: skip
    """`linattn.step` with positive random features and a normaliser."""
    q, k, v, _ = _check.token("step", q, k, v)
    token = (x[..., None, :] for x in (q, k, v))
    o, new = causal(
        attention.causal, phi, *token, initial_state=state, return_state=True, **options
    )
    if in_place:
        if state.log_scale is None:
            raise ValueError("step: state.log_scale is None; expected an array to write to")
        for x, y in zip(state, new, strict=True):
            x[...] = y
        new = state
    return o[..., 0, :], new


def causal_backward(
    operator: Callable, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, grad_out: Any, *,
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    grad_state: State | None = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.causal_backward` likewise; the scales count as constants, exact for eps = 0."""
    name = "causal_backward"
    if cu_seqlens is not None:
        return _packed.causal_backward(
            partial(causal_backward, operator, phi, **options), q, k, v, grad_out, cu_seqlens,
            key_lengths, initial_state, grad_state,
        )  # fmt: skip
    call = _Call(name, phi, q, k, v, grad_out, key_lengths, initial_state)
    last = State(*(np.zeros_like(x) for x in call.state[:2]))
    if grad_state is not None:
        for x, y in zip(last, grad_state[:2], strict=False):
            x[...] = y
    dq, dk, dv = (np.empty(x.shape, call.dtype) for x in (call.q, call.k, call.v))
    for part in reversed(list(call.segments(attention.causal, None, max(call.n, 1), options))):
        rows = (*part.head, ..., part.tokens, slice(None))
        da, db, dv[rows], behind = operator(
            part.a, part.b, call.v[rows], call.grad[rows], feature_map="identity",
            key_lengths=call.keys_in(part.head, part.tokens), initial_state=part.start,
            grad_state=State(*(x[part.head] for x in last[:2])), **options,
        )  # fmt: skip
        last.s[part.head] = behind.s * part.factor[..., None]
        last.z[part.head] = behind.z * part.factor
        dq[rows] = phi._pull(da * part.a)
        dk[rows] = phi.exponent_gradient(call.k[rows], db * part.b)
    grads = backward._sum_all((dq, dk, dv), tuple(map(np.asarray, (q, k, v))))
    with_state = initial_state is not None or grad_state is not None
    return (*grads, State(last.s, last.z)) if with_state else grads


def noncausal(
    operator: Callable, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    key_lengths: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`linattn.noncausal` with positive random features and a normaliser."""
    a, b = _over_all("noncausal", phi, q, k, v, key_lengths)[:2]
    return operator(a, b, v, feature_map="identity", key_lengths=key_lengths, **options)


def noncausal_backward(
    operator: Callable, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, grad_out: Any, *,
    key_lengths: Any = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.noncausal_backward` likewise; the scales count as constants."""
    a, b, q, k = _over_all("noncausal_backward", phi, q, k, v, key_lengths)
    da, db, dv = operator(
        a, b, v, grad_out, feature_map="identity", key_lengths=key_lengths, **options
    )
    da, db = da * a, db * b
    dq = phi._pull(da)
    dk = phi.exponent_gradient(k, db)
    return (*backward._sum_all((dq, dk), (q, k)), dv)


def _over_all(name: str, phi: PositiveRandomFeatures, q, k, v, key_lengths) -> tuple:
    """a and b under one scale, the largest exponents of all keys; and q and k as arrays."""
    q, k, _, shape = _check.qkv(name, q, k, v, same_length=False)
    dtype = _check.result_dtype(q, k)
    q, k = np.asarray(q, dtype), np.asarray(k, dtype)
    _, omega, factor = phi._operands(np.zeros((1, q.shape[-1]), dtype))
    s = k.shape[-2]
    keys = s if key_lengths is None else _check.key_lengths(name, key_lengths, s, shape[:-2])
    exponents = tasks["log_features"](k, omega, factor)
    there = (np.arange(s) < np.asarray(keys)[..., None])[..., None]
    top = np.where(there, exponents, -np.inf).max(-2, initial=-np.inf)
    a, b, _, rows = tasks["running_features"](q, k, omega, factor, dtype.type(keys), top)
    if (rows < dtype.type(max(q.shape[-2], s))).any():  # no key of the same bits passes `top`
        raise RuntimeError(f"{name}: the instruction set was changed during the call")
    return a, b, q, k


def _factor(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What takes a state from one scale to the next: a power of two, feature by feature."""
    step = BITS * math.log(2)
    steps = [np.rint(np.where(np.isfinite(x), x, 0) / step) for x in (before, after)]
    change = np.where(np.isfinite(before), steps[0] - steps[1], 0)
    return np.ldexp(np.ones((), before.dtype), (BITS * change).astype(np.int32))
