"""The short way to a gufunc: plain arrays, which need no check here, take 2 us."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .._core import checks, gradient_sums
from .._core.dtypes import FAST, work_dtype
from .._linattn import fast_call, pool_call

if TYPE_CHECKING:
    from .._types import Array, Shape
    from .kernels import Kernels
    from .tables import Table

    Operands = tuple[Any, ...]
    How = tuple[Any, Any, Any, Any, dict[str, Any]]  # feature_map, scale, normalize, eps, flags


class Plain:
    """Calls of a recurrence with plain arrays, which its gufuncs check themselves.

    They return NotImplemented where something needs a closer look.
    """

    def __init__(self, r: Kernels) -> None:
        operands = r.operands
        self._r, self._flags, self._scaled = r, r.flags["forward"], r.scaled
        self._optional = any(x.optional for x in operands)
        self._required = sum(not x.optional for x in operands)  # those that are not come last
        self._marks = tuple(
            (i, x.channels, x.suffix, x.optional) for i, x in enumerate(operands) if x.suffix
        )
        # Only channels are told by the number of axes of the leading operands.
        self._compared = r.layout.leading if any(x.channels for x in operands) else 0
        self._rank = len(operands[0].dims)
        #: Where to find the sizes of states: an operand, and its axis.
        self._sizes = {
            letter: (i, axis - len(x.dims))
            for i, x in reversed([*enumerate(operands)])
            for axis, letter in enumerate(x.dims)
            if not x.optional
        }
        #: Whether the state before all tokens is zeros.
        self._begins_with_zeros = r.first == 0 or "log_scale" not in r.fields
        #: The operand whose last axis is one longer than that of states, which gufuncs do not
        #: check; None if there is none.
        self._longer = next(
            (i for i, x in enumerate(operands) if x.dims[-1] in r.layout.one_less.values()), None
        )

    def call(
        self,
        table: Table,
        operands: Operands,
        more: tuple[Any, ...],
        how: How,
        states: Sequence[Any] = (),
        outputs: tuple[Any, ...] = (),
        rows: Any = None,
    ) -> Any:
        """What a gufunc gives for operands, ``more`` of them, numbers, and states.

        ``rows`` are those of a pool of states, which a step updates.
        """
        feature_map, scale, normalize, eps, flags = how
        variant: str | None = ""
        if self._longer is not None and not self._has_lengths(operands):
            return NotImplemented
        if self._marks:
            variant = self._variant_of(operands)
            if self._optional:
                if any([x is None for x in operands[: self._required]]):
                    return NotImplemented
                operands = present(operands)
        if variant is None or type(feature_map) is not str or type(normalize) is not bool:
            return NotImplemented
        key = variant, feature_map, normalize
        gufunc = table.get(key)
        if gufunc is None:
            if key not in table.names:
                return NotImplemented
            gufunc = table[key]
        outputs = outputs or (None,) * gufunc.nout
        switches: tuple[float | None, ...] = ()
        if flags:
            switches = tuple([checks.plain_switch(x, flags[x]) for x in self._flags if x in flags])
            if None in switches:
                return NotImplemented
        call = fast_call if rows is None else partial(pool_call, rows)
        if normalize:
            return call(gufunc, *operands, *more, scale, eps, *switches, *states, *outputs)
        if not (checks.is_plain_number(eps) and eps >= 0):
            return NotImplemented
        if self._scaled:
            return call(gufunc, *operands, *more, scale, *switches, *states, *outputs)
        return call(gufunc, *operands, *more, *switches, *states, *outputs)

    def forward(self, operands: Operands, state: Any, wanted: Any, how: How) -> Any:
        """The output of one sequence after a state, and the state after it if that is wanted."""
        r, normalize = self._r, how[2]
        states = self._one_sequence(operands, normalize, state)
        if states is None or type(wanted) is str:
            return NotImplemented
        outputs = None, *(None if wanted else ...,) * len(r.present[normalize])
        result = self.call(r._stateful, operands, (), how, states, outputs)
        if result is NotImplemented:
            return result
        o, *end = result
        return (o, r.unpacked(end, normalize)) if wanted else o

    def backward(
        self, operands: Operands, grad_out: Any, state: Any, grad_state: Any, how: How
    ) -> Any:
        """The gradients of one sequence, and that of the state before it if either is given."""
        r, normalize = self._r, how[2]
        if state is None and grad_state is None:
            grads = self.call(r._stateless_backward, operands, (grad_out,), how)
            if grads is NotImplemented:
                return grads
            grads = grads if type(grads) is tuple else (grads,)
            return gradient_sums.sum_all(grads, present(operands))
        states = self._one_sequence(operands, normalize, state, grad_state)
        if states is None:
            return NotImplemented
        grads = self.call(r._stateful_backward, operands, (grad_out,), how, states)
        if grads is NotImplemented:
            return grads
        fields = len(r.present[normalize])
        first, given = grads[-fields:], present(operands)
        if state is not None:
            first = gradient_sums.sum_all(first, states[-2 * fields : -fields])
        sums = gradient_sums.sum_all(r.over_sequences(grads[:-fields], operands), given)
        return *sums, r.unpacked(first, normalize)

    def step(self, operands: Operands, state: Any, written: bool, rows: Any, how: How) -> Any:
        """The output of a token, and the state after it, if it is ``written`` that before it."""
        arrays = self._state(operands, state, how[2])
        if arrays is None:
            return NotImplemented
        if not written:
            arrays = [np.array(x) if type(x) is ndarray else x for x in arrays]
        result = self.call(self._r._step, operands, (), how, (), (None, *arrays), rows)
        if result is NotImplemented:
            return result
        return result[0], state if written else self._r.state_of(arrays, how[2])

    # --- their parts ---------------------------------------------------------

    def _one_sequence(
        self, operands: Operands, normalize: Any, *states: Any
    ) -> Sequence[Any] | None:
        """The indices of one sequence and the arrays of states as gufuncs take them, or None."""
        if type(normalize) is not bool or not self._has_lengths(operands):
            return None
        found: list[Any] = [...] * (2 + self._r.keys)
        for i, state in enumerate(states):
            arrays: Iterable[Any] | None
            if state is not None:
                arrays = self._packed(operands, state, normalize)
            elif self._longer is None and (i > 0 or self._begins_with_zeros):
                arrays = [...] * len(self._r.present[normalize])  # gufuncs take zeros
            else:
                arrays = self._start(operands, normalize)
            if arrays is None:
                return None
            found += arrays
        return found

    def _packed(self, operands: Operands, state: Any, normalize: bool) -> Iterable[Any] | None:
        """The arrays of a state with an axis of one sequence, or None."""
        first, arrays = operands[0], self._state(operands, state, normalize)
        if type(first) is not ndarray or arrays is None:
            return None
        lead = first.ndim - self._rank
        batch = first.shape[:lead]
        for x, own in zip(arrays, self._r.present[normalize].values(), strict=True):
            # Gufuncs would let a state have leading axes that the operands lack.
            if type(x) is not ndarray or not x.ndim - len(own) == lead >= 0:
                return None
            if x.shape[:lead] != batch:
                return None
        return self._r.packed(arrays, normalize)

    def _start(self, operands: Operands, normalize: bool) -> Iterable[Any] | None:
        """The arrays of the state before all tokens, with an axis of one sequence, or None."""
        try:
            sizes = {x: operands[i].shape[axis] for x, (i, axis) in self._sizes.items()}
            dtype = work_dtype(operands[0].dtype)
        except (AttributeError, IndexError):
            return None
        if dtype not in FAST:
            return None

        def full(shape: Shape, value: float) -> Array:
            return np.full(shape, value, dtype) if value else np.zeros(shape, dtype)

        return self._r.start(full, self._r.cores(sizes, normalize, 1)).values()

    def _state(self, operands: Operands, state: Any, normalize: Any) -> Sequence[Any] | None:
        """The arrays of a state that has the fields that it is to have, and sizes that gufuncs do
        not check; else None."""
        r = self._r
        if type(normalize) is not bool:
            return None
        if r.one_array:
            arrays = [state]
        else:
            fields = r.present[normalize]
            if type(state) is not r.holder or [x is None for x in state] != [
                x not in fields for x in r.holder._fields
            ]:
                return None
            arrays = [x for x in state if x is not None]
        if self._longer is None:
            return arrays
        lengths, s = self._has_lengths(operands) and operands[self._longer].shape, arrays[0]
        fits = lengths and type(s) is ndarray and s.shape[-1:] == (lengths[-1] - 1,)
        return arrays if fits else None

    def _has_lengths(self, operands: Operands) -> bool:
        """Whether the operand that is longer than states is plain."""
        if self._longer is None:
            return True
        x = operands[self._longer]
        return type(x) is ndarray and x.shape[-1:] > (0,)

    def _variant_of(self, operands: Operands) -> str | None:
        """The variant for plain arrays of as many axes each; else None: for a closer look."""
        axes = getattr(operands[0], "ndim", 0)  # the gufunc refuses it if it is no array
        for x in operands[1 : self._compared]:
            if type(x) is not ndarray or x.ndim != axes:
                return None
        variant = ""
        for i, channels, suffix, optional in self._marks:
            x = operands[i]
            if type(x) is not ndarray:  # of one token a number may be Python's own
                if not (x is None if optional else type(x) is float):
                    return None
            elif optional:
                variant += suffix
            elif channels and x.ndim >= axes:
                if x.shape[-1] == 1:
                    return None
                variant += suffix
        return variant


def present(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those that are not None."""
    return tuple([x for x in operands if x is not None])  # faster than of a generator
