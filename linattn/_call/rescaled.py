"""Positive random features that rescale as they go, for the operators with a normaliser.

src/kernel/rescaling.h has the equations.  A state holds ``s`` and ``z`` divided by
``2**(96 * rint(log_scale / (96 * log(2))))`` feature by feature.  ``log_scale (..., f)`` is the
largest exponent of any key so far, a function of the prefix alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype
from .._core.gufuncs import internal_ufuncs, run
from .._core.layout import ALL_KEYS, SAME_TOKENS
from .._states import state_arrays
from .._states.state_arrays import State
from ..feature_maps import PositiveRandomFeatures
from . import exact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._types import Array, Shape
    from .recurrence import Recurrence


def call(
    recurrence: Recurrence, method: str, phi: PositiveRandomFeatures, operands: tuple[Any, ...],
    **options: Any,
) -> Any:  # fmt: skip
    """``recurrence.method`` with positive random features and a normaliser."""
    if recurrence.cross:
        over_all = {"forward": _forward_over_all, "backward": _backward_over_all}[method]
        return over_all(recurrence, phi, *operands, **options)
    in_order: Any = {"forward": _forward, "backward": _backward, "step": _step}[method]
    return in_order(recurrence.names[method], phi, *operands, **options)


# --- in token order: one kernel computes all of it ----------------------------


class _Call:
    """The checked operands of one call."""

    def __init__(
        self, name: str, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
        normalize: Any, eps: Any, scale: Any, key_lengths: Any = None, cu_seqlens: Any = None,
    ) -> None:  # fmt: skip
        self.name = name
        call = SAME_TOKENS.read(name, (q, k, v))
        self.dtype = result_dtype(*call.arrays)
        self.arrays = tuple(np.asarray(x, self.dtype) for x in call.arrays)
        self.shape, self.batch, (n, m) = call.shape, call.batch, call.shape[-2:]
        omega = phi._directions().astype(self.dtype)
        self.core = omega.shape[1], m
        numbers = checks.numbers(name, self.arrays, scale, eps, True)
        self.packing = state_arrays.sequences(name, n, self.batch, cu_seqlens, key_lengths)
        self.options = omega, math.sqrt(phi.temperature), *numbers, *self.packing.indices

    def state(self, argument: str, state: Any, no_scale: float) -> tuple[Array, ...]:
        """The arrays of a state (..., r, f, m); zeros if it is left out.

        log_scale is ``no_scale`` if the state has none.
        """
        inner = (self.packing.r, *self.core) if self.packing.packed else self.core
        cores, log_scale = {"s": inner, "z": inner[:-1]}, None
        if state is None and argument != "state":
            state = [np.zeros(core, self.dtype) for core in cores.values()]
        elif isinstance(state, tuple) and len(state) == len(State._fields):
            *state, log_scale = state
        found = state_arrays.checked(self.name, argument, state, cores, self.batch, self.dtype)
        s, z = found.values()
        if log_scale is None:
            log_scale = np.full_like(z, no_scale)
        else:
            self._check_scale(argument, log_scale, inner[:-1])
        if not self.packing.packed:
            s, z, log_scale = s[..., None, :, :], z[..., None, :], log_scale[..., None, :]
        return s, z, log_scale

    def _check_scale(self, argument: str, log_scale: Any, core: Shape) -> None:
        name = f"{argument}.log_scale"
        state_arrays.checked_field(self.name, name, log_scale, self.batch, core, self.dtype)
        if argument != "grad_state" and not (log_scale < np.inf).all():
            raise ValueError(
                f"{self.name}: {name} holds NaN or inf; expected finite numbers, or -inf for no key"
            )

    def run(self, start: Iterable[Array], out: Array | None = None) -> tuple[Array, State]:
        """The output and the state after the last token."""
        inputs = *self.arrays, *self.options, *start
        o, *end = run(internal_ufuncs["rescaled_causal"], inputs, (out, None, None, None))
        return o, self.result(*end)

    def result(self, s: Array, z: Array, log_scale: Array) -> State:
        """The state of a gufunc's outputs."""
        if self.packing.packed:
            return State(s, z, log_scale)
        return State(s.squeeze(-3), z.squeeze(-2), log_scale.squeeze(-2))


def _forward(
    name: str, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    initial_state: State | None, return_state: bool, out: Array | None = None, **options: Any,
) -> Any:  # fmt: skip
    """The operator."""
    exact.refuse(name, return_state, initial_state, "for a map that rescales")
    call = _Call(name, phi, q, k, v, **options)
    if out is not None:
        checks.out(name, out, call.shape, *call.arrays)
    o, state = call.run(call.state("initial_state", initial_state, math.nan), out)
    return (o, state) if return_state else o


def _step(
    name: str, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    state: State, in_place: bool, **options: Any,
) -> tuple[Array, State]:  # fmt: skip
    """The operator for one token."""
    call = _Call(name, phi, *(x[..., None, :] for x in (q, k, v)), **options)
    start = call.state("state", state, math.nan)
    if in_place:
        if State(*state).log_scale is None:
            raise ValueError(f"{name}: state.log_scale is None; expected an array to write to")
        fields = {f"state.{x}": y for x, y in zip(State._fields, state, strict=True)}
        f = call.core[:1]
        state_arrays.updated(name, fields, call.batch, (call.core, f, f))
    o, after = call.run(start)
    if in_place:
        for x, y in zip(state, after, strict=True):
            x[...] = y
        after = state
    return o[..., 0, :], after


def _backward(
    name: str, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *, grad_out: Any,
    initial_state: State | None, grad_state: State | None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients; that of log_scale is in the place of log_scale."""
    call = _Call(name, phi, q, k, v, **options)
    grad_out = np.asarray(checks.cotangent(name, grad_out, call.shape), call.dtype)
    start = call.state("initial_state", initial_state, math.nan)
    last = call.state("grad_state", grad_state, 0.0)
    inputs = *call.arrays, grad_out, *call.options, *start, *last
    *grads, ds, dz, dlog_scale = run(internal_ufuncs["rescaled_causal_backward"], inputs)
    first = gradient_sums.sum_all(tuple(grads), call.arrays)
    if initial_state is None and grad_state is None:
        return first
    if initial_state is not None:
        ds, dz, dlog_scale = gradient_sums.sum_all((ds, dz, dlog_scale), start)
    state = call.result(ds, dz, dlog_scale)
    if initial_state is None or len(initial_state) < 3 or initial_state[2] is None:
        state = state._replace(log_scale=None)  # it is included in the gradient of z
    return *first, state


# --- over all keys: features under one scale, the largest exponents -----------


def _forward_over_all(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *,
    key_lengths: Any, **options: Any,
) -> Any:  # fmt: skip
    """The operator."""
    a, b = _over_all(recurrence.name, phi, q, k, v, key_lengths)[:2]
    return recurrence.forward((a, b, v), feature_map="identity", key_lengths=key_lengths, **options)


def _backward_over_all(
    recurrence: Recurrence, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, *, grad_out: Any,
    key_lengths: Any, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients."""
    name = recurrence.names["backward"]
    a, b, argmax, exponents, q, k = _over_all(name, phi, q, k, v, key_lengths)
    da, db, dv = recurrence.backward(
        (a, b, v), grad_out, feature_map="identity", key_lengths=key_lengths, **options
    )
    du, de = da * a, db * b
    if options["eps"] != 0 and k.shape[-2] > 0:
        _add_largest_terms(du, de, argmax, exponents)
    dq = phi._pull(du)
    dk = phi.exponent_gradient(k, de)
    gradient_sums.clear_padding(dk, key_lengths)
    return (*gradient_sums.sum_all((dq, dk), (q, k)), dv)


def _add_largest_terms(du: Array, de: Array, argmax: Array, exponents: Array) -> None:
    """Add what eps contributes to the gradients of u and e.

    eps is relative to ``exp(c_i)``, where c_i is the largest ``u_if + e_jf``: that of the feature
    argmax_i and of the key with the largest exponent.  Scaling all of a_i by a factor changes the
    quotient as scaling eps by its inverse does.
    """
    *lead, _, f = du.shape
    feature = argmax[..., None].astype(np.intp)
    dc = -du.sum(-1, keepdims=True)
    np.put_along_axis(du, feature, np.take_along_axis(du, feature, -1) + dc, -1)
    heads = math.prod(lead)
    places = feature.reshape(heads, -1) + f * np.arange(heads)[:, None]
    sums = np.bincount(places.ravel(), dc.ravel(), heads * f).reshape(*lead, 1, f)
    key = np.broadcast_to(exponents.argmax(-2, keepdims=True), sums.shape)
    more = np.take_along_axis(de, key, -2) + sums.astype(de.dtype)
    np.put_along_axis(de, key, more, -2)


def _over_all(
    name: str, phi: PositiveRandomFeatures, q: Any, k: Any, v: Any, key_lengths: Any
) -> tuple[Any, ...]:
    """a and b under one scale, the largest term of each a, the keys' exponents, q and k."""
    call = ALL_KEYS.read(name, (q, k, v))
    q, k, _ = call.arrays
    dtype = result_dtype(q, k)
    q, k = np.asarray(q, dtype), np.asarray(k, dtype)
    _, omega, factor = phi._operands(np.zeros((1, q.shape[-1]), dtype))
    s = k.shape[-2]
    keys = (
        s if key_lengths is None else state_arrays.checked_lengths(name, key_lengths, s, call.batch)
    )
    exponents = internal_ufuncs["log_features"](k, omega, factor)
    there = (np.arange(s) < np.asarray(keys)[..., None])[..., None]
    exponents = np.where(there, exponents, -np.inf)
    running_max = exponents.max(-2, initial=-np.inf)
    a, b, argmax = internal_ufuncs["scaled_features"](q, k, omega, factor, keys, running_max)
    return a, b, argmax, exponents, q, k
