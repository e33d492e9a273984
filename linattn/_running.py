"""Positive random features that rescale as they go, for the normalised operators.

src/kernel/running.h has the equations.  A state holds ``s`` and ``z`` divided by
``2**(96 * rint(log_scale / (96 * log(2))))`` feature by feature, where ``log_scale (..., f)``
is the largest exponent of a key so far: a function of the prefix alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _check, _gradients, _state
from ._gufuncs import row_ufuncs
from ._state import State
from .feature_maps import PositiveRandomFeatures

if TYPE_CHECKING:
    from ._operator import Recurrence
    from ._types import Array

BITS = 96  #: a state's scale moves by so many powers of two, see STEP_HIGH in running.h
BLOCK = 1024  #: tokens mapped at a time
CORE = (2, 1, 1)  #: axes of s, z and log_scale that are no leading ones


def call(
    recurrence: Recurrence, method: str, phi: PositiveRandomFeatures, operands: tuple[Any, ...],
    **options: Any,
) -> Any:  # fmt: skip
    """``recurrence.method`` with positive random features and a normaliser."""
    methods: dict[str, Any] = (
        {"forward": _forward_over_all, "backward": _backward_over_all}
        if recurrence.cross
        else {"forward": _forward, "backward": _backward, "step": _step}
    )
    return methods[method](recurrence, phi, *operands, **options)


class _Segment(NamedTuple):
    """Tokens under one scale: indices of heads, tokens, features, the start and its factor."""

    head: Any
    tokens: slice
    a: Array
    b: Array
    start: State
    factor: Array


class _Call:
    """The operands of one causal call, broadcast over the heads; states are (..., r, f, m)."""

    def __init__(
        self, recurrence: Recurrence, method: str, phi: PositiveRandomFeatures,
        q: Any, k: Any, v: Any, grad_out: Any, key_lengths: Any, cu_seqlens: Any,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.recurrence, self.name = recurrence, recurrence.names[method]
        name = self.name
        q, k, v, shape = _check.qkv(name, q, k, v, same_length=True)
        _check.numbers(name, (q, k, v), options["scale"], options["eps"], True)
        self.dtype = _check.result_dtype(q, k, v)
        self.batch, self.n, self.shape = shape[:-2], shape[-2], shape
        self.q, self.k, self.v = (
            np.broadcast_to(np.asarray(x, self.dtype), (*self.batch, *x.shape[-2:]))
            for x in (q, k, v)
        )
        self.grad: Any = None
        if grad_out is not None:
            self.grad = np.broadcast_to(
                np.asarray(_check.cotangent(name, grad_out, shape), self.dtype), shape
            )
        self.phi, self.core = phi, (phi.features(q.shape[-1]), shape[-1])
        _, self.omega, self.factor = phi._operands(np.zeros((1, q.shape[-1]), self.dtype))
        self.packing = _state.sequences(name, self.n, self.batch, cu_seqlens, None)
        lengths = self.n if key_lengths is None else key_lengths
        lengths = _check.key_lengths(name, lengths, self.n, self.batch)
        self.keys = np.broadcast_to(lengths, self.batch)

    def fields(self, argument: str, state: Any) -> State:
        """The arrays of a state, checked."""
        r, core = len(self.packing.begin), self.core
        inner = (r, *core) if self.packing.packed else core
        fields = _check.state(
            self.name, argument, state, self.batch, inner, self.dtype, True, scaled=True
        )
        return State(*fields)

    def with_r(self, state: State) -> State:
        """A state with an axis r, whether or not sequences are packed."""
        if self.packing.packed:
            return state
        fields: Iterator[Any] = (
            x if x is None else np.expand_dims(x, -1 - axes)
            for x, axes in zip(state, CORE, strict=True)
        )
        return State(*fields)

    def empty_state(self) -> State:
        f, m = self.core
        lead = (*self.batch, len(self.packing.begin), f)
        return State(*(np.empty(x, self.dtype) for x in ((*lead, m), lead, lead)))

    def start(self, state: State | None) -> tuple[State, Any]:
        """The state before the first tokens, with all leading axes, and its `_under_scale`."""
        start = self.empty_state()
        if state is None:
            state, factor = State(np.zeros(()), 0.0, -np.inf), 1.0
        else:
            state, factor = _under_scale(self.with_r(state))
        for x, y in zip(start, state, strict=True):
            x[...] = y
        return start, factor

    def segments(
        self, r: int, state: State, o: Array | None, block: int, options: dict[str, Any]
    ) -> Iterator[_Segment]:
        """Runs over all segments of sequence r from its state, writing o.

        Yields each, and then leaves the last state in the arrays of the first.
        """
        begin, end = (int(x[r]) for x in self.packing[:2])
        arrays = state
        # A forward call has no use for a block behind it, and maps into the same memory.
        room = (
            ()
            if o is None
            else tuple(
                np.empty((*self.batch, min(block, end - begin), self.core[0]), self.dtype)
                for _ in range(2)
            )
        )
        for first in range(begin, end, block):
            tokens = slice(first, min(first + block, end))
            into = tuple(x[..., : tokens.stop - first, :] for x in room)
            a, b, top, rows = self._features((), tokens, state.log_scale, into)
            if (rows == tokens.stop - first).all():
                state, segment = self._run((), tokens, a, b, state, top, o, options)
                yield segment
                continue
            state = State(*(np.array(x) for x in state))
            for head in np.ndindex(self.batch):
                yield from self._head(head, tokens, state, o, options)
        for x, y in zip(arrays, state, strict=True):
            x[...] = y

    def _head(
        self, head: Any, tokens: slice, states: State, o: Array | None, options: dict[str, Any]
    ) -> Iterator[_Segment]:
        """The segments of one head; its state is updated in `states`."""
        state, first = State(*(x[head] for x in states)), tokens.start
        while first < tokens.stop:
            rest = slice(first, tokens.stop)
            a, b, top, rows = self._features(head, rest, state.log_scale)
            done = slice(first, first + int(rows))
            a, b = a[: int(rows)], b[: int(rows)]
            state, segment = self._run(head, done, a, b, state, top, o, options)
            yield segment
            first = done.stop
        for x, y in zip(states, state, strict=True):
            x[head] = y

    def _features(
        self, head: Any, tokens: slice, top: Array, into: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        rows = (*head, ..., tokens, slice(None))
        keys = self.keys_in(head, tokens)
        return row_ufuncs["running_features"](
            self.q[rows], self.k[rows], self.omega, self.factor, keys, top,
            out=(*(into or (None, None)), None, None),
        )  # fmt: skip

    def keys_in(self, head: Any, tokens: slice) -> Array:
        """How many of the tokens have keys."""
        return np.clip(self.keys[head] - tokens.start, 0, tokens.stop - tokens.start)

    def _run(
        self, head: Any, tokens: slice, a: Array, b: Array, state: State, top: Array,
        o: Array | None, options: dict[str, Any],
    ) -> tuple[State, _Segment]:  # fmt: skip
        """One segment: rescales the state, computes its rows of o, and gives the state behind."""
        factor = _factor(state.log_scale, top)
        start = State(state.s * factor[..., None], state.z * factor)
        segment = _Segment(head, tokens, a, b, start, factor)
        if o is None and tokens.stop in self.packing.end:
            return State(start.s, start.z, top), segment  # a gradient needs no later state
        rows = (*head, ..., tokens, slice(None))
        _, end = self.recurrence.forward(
            (a, b, self.v[rows]), feature_map="identity", key_lengths=self.keys_in(head, tokens),
            initial_state=start, return_state=True, out=None if o is None else o[rows], **options,
        )  # fmt: skip
        return State(end.s, end.z, top), segment


def _forward(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    return_state: bool = False, out: Array | None = None, **options: Any,
) -> Any:  # fmt: skip
    """The operator in token order."""
    call = _Call(recurrence, "forward", phi, q, k, v, None, key_lengths, cu_seqlens, options)
    if out is not None:
        _check.out(call.name, out, call.shape, call.q, call.k, call.v)
    if initial_state is not None:
        initial_state = call.fields("initial_state", initial_state)
    o = out
    if o is None or any(np.may_share_memory(o, x) for x in (call.q, call.k, call.v)):
        o = np.empty(call.shape, call.dtype)
    state = _fill(call, initial_state, o, options)
    if out is not None and out is not o:
        out[...] = o
        o = out
    return (o, state) if return_state else o


def _step(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    state: State, in_place: bool = False, **options: Any,
) -> tuple[Array, State]:  # fmt: skip
    """The operator for one token."""
    q, k, v = (x[..., None, :] for x in (q, k, v))
    call = _Call(recurrence, "step", phi, q, k, v, None, None, None, options)
    fields = call.fields("state", state)
    if in_place:
        if fields.log_scale is None:
            raise ValueError(f"{call.name}: state.log_scale is None; expected an array to write to")
        _check.in_place(call.name, fields, call.batch)
    o = np.empty(call.shape, call.dtype)
    new = _fill(call, fields, o, options)
    if in_place:
        for x, y in zip(fields, new, strict=True):
            x[...] = y
        new = state
    return o[..., 0, :], new


def _fill(call: _Call, state: State | None, o: Array, options: dict[str, Any]) -> State:
    """Writes o; the state after the last token."""
    states, _ = call.start(state)
    for r in range(len(call.packing.begin)):
        for _ in call.segments(r, _part(states, r), o, BLOCK, options):
            pass
    return _state.result(call.packing, *states)


def _backward(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *, grad_out: Any,
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    grad_state: State | None = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients in token order; the scales count as constants, exact for eps = 0."""
    call = _Call(recurrence, "backward", phi, q, k, v, grad_out, key_lengths, cu_seqlens, options)
    given, last = (
        None if state is None else call.fields(argument, state)
        for argument, state in (("initial_state", initial_state), ("grad_state", grad_state))
    )
    starts, factor = call.start(given)
    ds, dz, _ = call.empty_state()
    ds[...], dz[...] = (0, 0) if last is None else call.with_r(last)[:2]
    grads = tuple(np.empty(x.shape, call.dtype) for x in (call.q, call.k, call.v))
    for r in range(len(call.packing.begin)):
        start, behind = _part(starts, r), State(ds[..., r, :, :], dz[..., r, :])
        parts = call.segments(r, start, None, max(call.n, 1), options)
        for part in reversed(list(parts)):
            _segment_backward(call, part, behind, grads, options)
    _gradients.clear_padding(grads[1], call.keys)
    grads = _gradients.sum_all(grads, tuple(map(np.asarray, (q, k, v))))
    if initial_state is None and grad_state is None:
        return grads
    ds *= np.asarray(factor)[..., None]
    dz *= factor
    if given is not None:
        ds, dz = _gradients.sum_all((ds, dz), call.with_r(given)[:2])
    return *grads, _state.result(call.packing, ds, dz)


def _segment_backward(
    call: _Call, part: _Segment, behind: State, grads: tuple[Array, ...], options: dict[str, Any]
) -> None:
    """Writes dq, dk and dv of a segment; the gradient of the state behind it becomes that of
    the state before."""
    rows = (*part.head, ..., part.tokens, slice(None))
    dq, dk, dv = grads
    da, db, dv[rows], before = call.recurrence.backward(
        (part.a, part.b, call.v[rows]), call.grad[rows], feature_map="identity",
        key_lengths=call.keys_in(part.head, part.tokens), initial_state=part.start,
        grad_state=State(*(x[part.head] for x in behind[:2])), **options,
    )  # fmt: skip
    behind.s[part.head] = before.s * part.factor[..., None]
    behind.z[part.head] = before.z * part.factor
    dq[rows] = call.phi._pull(da * part.a)
    dk[rows] = call.phi.exponent_gradient(call.k[rows], db * part.b)


def _forward_over_all(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    key_lengths: Any, **options: Any,
) -> Any:  # fmt: skip
    """The operator whose queries see all keys."""
    a, b = _over_all(recurrence.name, phi, q, k, v, key_lengths)[:2]
    return recurrence.forward((a, b, v), feature_map="identity", key_lengths=key_lengths, **options)


def _backward_over_all(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *, grad_out: Any,
    key_lengths: Any, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Its gradients; the scales count as constants."""
    a, b, q, k = _over_all(recurrence.names["backward"], phi, q, k, v, key_lengths)
    da, db, dv = recurrence.backward(
        (a, b, v), grad_out, feature_map="identity", key_lengths=key_lengths, **options
    )
    da, db = da * a, db * b
    dq = phi._pull(da)
    dk = phi.exponent_gradient(k, db)
    _gradients.clear_padding(dk, key_lengths)
    return (*_gradients.sum_all((dq, dk), (q, k)), dv)


def _over_all(
    name: str, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, key_lengths: Any
) -> tuple[Any, ...]:
    """a and b under one scale, the largest exponents of all keys; and q and k as arrays."""
    q, k, _, shape = _check.qkv(name, q, k, v, same_length=False)
    dtype = _check.result_dtype(q, k)
    q, k = np.asarray(q, dtype), np.asarray(k, dtype)
    _, omega, factor = phi._operands(np.zeros((1, q.shape[-1]), dtype))
    s = k.shape[-2]
    keys = s if key_lengths is None else _check.key_lengths(name, key_lengths, s, shape[:-2])
    exponents = row_ufuncs["log_features"](k, omega, factor)
    there = (np.arange(s) < np.asarray(keys)[..., None])[..., None]
    top = np.where(there, exponents, -np.inf).max(-2, initial=-np.inf)
    a, b, _, rows = row_ufuncs["running_features"](q, k, omega, factor, keys, top)
    if (rows < dtype.type(max(q.shape[-2], s))).any():  # no key of the same bits passes `top`
        raise RuntimeError(f"{name}: the instruction set was changed during the call")
    return a, b, q, k


def _part(state: State, r: int) -> State:
    """Sequence r of a packed state, as views."""
    s, z, log_scale = state
    return State(s[..., r, :, :], z[..., r, :], log_scale[..., r, :])


def _under_scale(state: State) -> tuple[State, Any]:
    """A state without a scale, plain sums, under that of its own z; and by what it was
    multiplied."""
    s, z, log_scale = state
    if log_scale is not None:
        return state, 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        log_scale = np.log(np.ascontiguousarray(z))  # which differs by layout in its last bit
    log_scale[~np.isfinite(log_scale)] = -np.inf
    factor = _factor(np.zeros_like(z), log_scale)
    return State(s * factor[..., None], z * factor, log_scale), factor


def _factor(before: Array, after: Array) -> Array:
    """What takes a state from one scale to the next: a power of two, feature by feature."""
    step = BITS * math.log(2)
    steps = [np.rint(np.where(np.isfinite(x), x, 0) / step) for x in (before, after)]
    change = np.where(np.isfinite(before), steps[0] - steps[1], 0)
    return np.ldexp(np.ones((), before.dtype), (BITS * change).astype(np.int32))
