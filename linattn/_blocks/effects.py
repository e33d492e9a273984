"""The effects of blocks of tokens on a state, how they combine, and how they are sent.

Each class has three methods: ``after(state)`` is the state after the block, from the one before it
(None for the empty state); ``behind(first)`` is the effect of two consecutive blocks; and
``turned(grad, start)`` is the effect on gradients, which go backwards through the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._core.gufuncs import quiet
from .._states.state_arrays import State


class Element(NamedTuple):
    """``s -> a s + s0``, ``z -> z + z0``."""

    a: Any  # None, factors that broadcast against s, or a matrix (..., f, f)
    s: Any
    z: Any = None
    matrix: bool = False  #: whether a is a matrix

    @quiet
    def after(self, state: State | None) -> State:
        if state is None:
            return State(self.s, self.z)
        s, z = state[:2]  # a pair is a state too
        return State(self._act(s) + self.s, None if self.z is None else z + self.z)

    @quiet
    def behind(self, first: Element) -> Element:
        a = self.a if first.a is None else self._act(first.a)
        return Element(a, *self.after(State(first.s, first.z))[:2], self.matrix)

    def turned(self, grad: State, start: State | None) -> Element:
        """The same map with a transposed, and conjugated; its own part is ``grad``."""
        a = self.a
        if a is not None:
            a = a.mT if self.matrix else a.conj()
        return Element(a, grad.s, grad.z, self.matrix)

    def _act(self, s: Any) -> Any:
        return s if self.a is None else self.a @ s if self.matrix else self.a * s


class StackedElement(NamedTuple):
    """``[s; z] -> a [s; z] + [s0; z0]``, of a state of two arrays (..., f, m)."""

    a: Any  # (..., 2 f, 2 f)
    s: Any
    z: Any

    @quiet
    def after(self, state: State | None) -> State:
        if state is None:
            return State(self.s, self.z)
        f, both = self.s.shape[-2], self.a @ stacked(*state[:2])
        return State(both[..., :f, :] + self.s, both[..., f:, :] + self.z)

    @quiet
    def behind(self, first: StackedElement) -> StackedElement:
        return StackedElement(self.a @ first.a, *self.after(State(first.s, first.z))[:2])

    def turned(self, grad: State, start: State | None) -> StackedElement:
        """The same map with a transposed; its own part is ``grad``."""
        return StackedElement(self.a.mT, grad.s, grad.z)


class ScaledElement(NamedTuple):
    """The effect on a state under a log scale: the memory is ``e^log_scale s``.

    The memory is multiplied by ``e^a``, and the block's own memory is added.  The log scale after
    the block is the larger of the two.
    """

    a: Any  # one for each number of log_scale
    s: Any
    z: Any
    log_scale: Any
    first: float  #: log_scale of the empty state

    @quiet
    def after(self, state: State | None) -> State:
        old, new, log_scale, _ = self._weights(self.first if state is None else state[2])
        s, z = (None if x is None else _times(new, x, x) for x in (self.s, self.z))
        if state is not None:
            s = s + _times(old, state[0], s)
            z = None if z is None else z + _times(old, state[1], z)
        return State(s, z, log_scale)

    def behind(self, first: ScaledElement) -> ScaledElement:
        state = self.after(State(first.s, first.z, first.log_scale))
        return ScaledElement(self.a + first.a, *state, self.first)

    @quiet
    def turned(self, grad: State, start: State | None) -> ScaledGradient:
        """``start`` is the state before the block."""
        end = self.after(start)
        if start is None:
            z = None if self.z is None else np.zeros_like(self.z)
            start = State(np.zeros_like(self.s), z, np.full_like(self.log_scale, self.first))
        old, _, _, kept = self._weights(start.log_scale)
        t = grad.log_scale - _inner(grad, start, self)
        kept = kept.astype(self.s.dtype)
        return ScaledGradient(old, kept, grad.s, grad.z, t, *start[:2], *end[:2])

    def _weights(self, before: Any) -> tuple[Any, Any, Any, Any]:
        """The weights of the memory before and of the block's own, the log scale after it, and
        where that is the one before it, decayed."""
        xp, own = self.s.__array_namespace__(), self.log_scale
        left = self.a + before
        kept = left >= own
        old = xp.where(left == -np.inf, 0, xp.exp(xp.where(kept, 0, left - own)))
        new = xp.where(own == -np.inf, 0, xp.exp(xp.where(kept & (left > own), own - left, 0)))
        return old, new, xp.where(kept, left, own), kept


class ScaledGradient(NamedTuple):
    """The effect on the gradient of a state under a log scale.

    ``s`` and ``z`` are multiplied by a factor.  Let t be the gradient of log_scale at constant
    memory, ``grad.log_scale - <grad.s, s> - <grad.z, z>``: it is kept where log_scale is.
    """

    factor: Any
    kept: Any  # 1 or 0
    s: Any
    z: Any
    t: Any
    start_s: Any  # the state before the block, in the order of tokens
    start_z: Any
    end_s: Any  # and the one after it
    end_z: Any

    @quiet
    def after(self, grad: State | None) -> State:
        s, z, t = self.s, self.z, self.t
        if grad is not None:
            t = grad[2] - _inner(grad, State(self.end_s, self.end_z), self)
            s, z, t = self._applied(grad[0], grad[1], t)
        start = State(self.start_s, self.start_z)
        return State(s, z, np.asarray(t + _inner(State(s, z), start, self)))

    @quiet
    def behind(self, first: ScaledGradient) -> ScaledGradient:
        own = self._applied(first.s, first.z, first.t)
        return ScaledGradient(
            self.factor * first.factor, self.kept * first.kept, *own,
            self.start_s, self.start_z, first.end_s, first.end_z,
        )  # fmt: skip

    def _applied(self, s: Any, z: Any, t: Any) -> tuple[Any, Any, Any]:
        s = self.s + _times(self.factor, s, self.s)
        z = None if self.z is None else self.z + _times(self.factor, z, self.z)
        return s, z, self.t + np.where(self.kept != 0, t, 0)


AnyElement: TypeAlias = Element | StackedElement | ScaledElement | ScaledGradient


def compose(first: Any, second: Any) -> Any:
    """The element of two consecutive blocks."""
    return second.behind(first)


def stacked(s: Any, z: Any) -> Any:
    """s above z."""
    return s.__array_namespace__().concat([s, z], axis=-2)


def pack(element: AnyElement) -> Any:
    """An element as one row of real numbers, to send it."""
    flat = np.concatenate([np.ravel(x) for x in element if _is_array(x)])
    return flat.view(flat.real.dtype)


def unpack(flat: Any, like: Any) -> Any:
    """The element in a row of numbers, as views, in the shapes of ``like``."""
    sizes = [x.size for x in like if _is_array(x)]
    parts = iter(np.split(flat.view(like.s.dtype), np.cumsum(sizes)))
    return type(like)(*(next(parts).reshape(x.shape) if _is_array(x) else x for x in like))


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape")


def _times(weight: Any, x: Any, like: Any) -> Any:
    """``weight x``, where a weight of 0 removes what is not finite.

    ``like`` has all axes of the product, the weight all but the last ones.
    """
    weight = weight[(..., *(None,) * (like.ndim - weight.ndim))]
    return x.__array_namespace__().where(weight == 0, 0, weight * x)


def _inner(grad: State, state: State, like: Any) -> Any:
    """``<grad.s, s> + <grad.z, z>`` for each number of a log scale."""
    lead = like[0].ndim  # of the logarithm of the decay
    total = _sum(grad[0] * state[0], like.s.ndim - lead)
    return total if like.z is None else total + _sum(grad[1] * state[1], like.z.ndim - lead)


def _sum(x: Any, axes: int) -> Any:
    """The sum over the last axes."""
    return x.sum(tuple(range(-axes, 0))) if axes else x
