"""``state_at``: the states after some of the tokens of a sequence.

The sequence is cut at these positions.  Each segment begins with the state that the one before it
leaves, and gradients go from the last segment to the first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _check, _state
from ._dtypes import result_dtype, state_dtype
from ._gufuncs import quiet
from ._state import State

if TYPE_CHECKING:
    from ._types import Array, Shape


@quiet
def forward(
    r: Any, operands: tuple[Any, ...], state_at: Any, *, initial_state: Any, return_state: Any,
    out: Any, **options: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The output, the states at the positions, and the state after the last token."""
    cut = _Cut(r, "forward", operands, state_at, options)
    if not return_state:
        raise ValueError(
            f"{cut.function}: state_at is given and return_state is {return_state!r}; expected "
            "True, as the states are returned"
        )
    if out is not None:
        _check.out(cut.function, out, cut.call.shape, *cut.call.typed)
    o = None if any(_overlap(out, x) for x in cut.operands) else out
    state, states = initial_state, {}
    for begin, end in cut.segments:
        rows = cut.rows(begin, end)
        part, state = r.forward(
            cut.part(begin, end), initial_state=state, return_state=True,
            out=None if o is None else o[..., rows, :], **cut.options(begin, end),
        )  # fmt: skip
        if o is None:
            o = np.empty(cut.call.shape, part.dtype)
            o[..., rows, :] = part
        states[end] = state
    if out is not None and o is not out:
        out[...] = o
    return o if out is None else out, cut.stacked(states, state), state


@quiet
def backward(
    r: Any, operands: tuple[Any, ...], state_at: Any, *, grad_out: Any, initial_state: Any,
    grad_state: Any, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients, given those of the states at the positions."""
    cut = _Cut(r, "backward", operands, state_at, options, grad_out)
    if grad_state is None:
        more = {"initial_state": initial_state}
        return r.backward(operands, grad_out=grad_out, **more, **options)
    cotangents = cut.cotangents(grad_state)
    starts = [initial_state]
    for begin, end in cut.segments[:-1]:
        _, state = r.forward(
            cut.part(begin, end), initial_state=starts[-1], return_state=True, out=None,
            **cut.options(begin, end),
        )  # fmt: skip
        starts.append(state)
    grads = []
    after: Any = None
    for (begin, end), start in zip(reversed(cut.segments), reversed(starts), strict=True):
        *part, after = r.backward(
            cut.part(begin, end), grad_out=cut.grad_out[..., cut.rows(begin, end), :],
            initial_state=start, grad_state=cut.sum(after, cotangents, end),
            **cut.options(begin, end),
        )  # fmt: skip
        grads.append((cut.rows(begin, end), part))
    return *cut.joined(grads), after


class _Cut:
    """A call cut at some positions: numbers of tokens from its first one, or from its last one
    where it goes in reverse."""

    def __init__(
        self, r: Any, method: str, operands: tuple[Any, ...], state_at: Any,
        options: dict[str, Any], grad_out: Any = None,
    ) -> None:  # fmt: skip
        from ._initial import cores_of  # at the top it would be circular

        self.function, self._options, self._rows = r.names[method], options, r.operands
        if options.get("cu_seqlens") is not None:
            raise ValueError(
                f"{self.function}: cu_seqlens is given; expected None, as state_at is given"
            )
        self.call = r._read(self.function, operands)
        self.n = self.call.fit.sizes["n"]
        self.positions = positions(self.function, state_at, self.n)
        edges = [0, *sorted({*self.positions})]
        if edges[-1] < self.n or len(edges) == 1:
            edges.append(self.n)
        self.segments = [*pairwise(edges)]
        self.cores = cores_of(r, self.function, self.call, options)
        self.one_array = r.one_array
        if options.get("key_lengths") is not None:
            lengths = options["key_lengths"], self.n, self.call.batch
            self._options = options | {
                "key_lengths": _state.checked_lengths(self.function, *lengths)
            }
        self.operands = [x if _is_number(x) else np.asarray(x) for x in operands]
        typed = self.call.typed
        if grad_out is not None:
            grad_out = r.cotangent(self.function, grad_out, self.call.shape)
            self.grad_out = np.broadcast_to(grad_out, self.call.shape)
            typed = *typed, self.grad_out
        #: The dtype of gradients, if it is not that of the segments.
        self.narrow = result_dtype(*typed)
        self.wide = state_dtype(*typed)
        if grad_out is not None and self.narrow != self.wide:  # sums need more than 16 bits
            self.operands = [self._widened(x) for x in self.operands]
            self.grad_out = self._widened(self.grad_out)
        arrays = [None if _is_number(x) else x for x in self.operands]
        own = r.layout.own_axes([np.empty(0) if x is None else x for x in arrays])
        self.axes = [
            self._token_axis(row, x, rank)
            for row, x, rank in zip(r.operands, arrays, own, strict=True)
        ]

    def _widened(self, x: Any) -> Any:
        return x.astype(self.wide) if isinstance(x, np.ndarray) and x.itemsize == 2 else x

    def _token_axis(self, row: Any, x: Any, own: int) -> int | None:
        """The axis along which an operand is cut; None for one that all tokens share."""
        if x is None or not row.has_tokens or x.ndim < own:
            return None
        axis = x.ndim - own
        return axis if x.shape[axis] == self.n else None

    def rows(self, begin: int, end: int) -> slice:
        """The tokens of a segment."""
        if self._options.get("reverse"):
            return slice(self.n - end, self.n - begin)
        return slice(begin, end)

    def part(self, begin: int, end: int) -> tuple[Any, ...]:
        """The operands of a segment."""
        rows = self.rows(begin, end)
        return tuple(
            x if axis is None else x[(*(slice(None),) * axis, rows)]
            for x, axis in zip(self.operands, self.axes, strict=True)
        )

    def options(self, begin: int, end: int) -> dict[str, Any]:
        """The options of a segment."""
        lengths = self._options.get("key_lengths")
        if lengths is None:
            return self._options
        return self._options | {"key_lengths": np.clip(lengths - begin, 0, end - begin)}

    def stacked(self, states: dict[int, Any], last: Any) -> Any:
        """The states at the positions, with an axis for them before the axes of their own."""
        if self.one_array:
            return self._stack([states[i] for i in self.positions], last, self.cores.s)
        return State(*(
            None if x is None else self._stack([states[i][j] for i in self.positions], x, core)
            for j, (x, core) in enumerate(zip(last, self.cores, strict=True))
        ))  # fmt: skip

    def _stack(self, arrays: list[Any], like: Any, core: Any) -> Array:
        lead = like.shape[: like.ndim - len(core)]
        stack = np.empty((*lead, len(arrays), *core), like.dtype)
        for i, x in enumerate(arrays):
            stack[self._at(i, core)] = x
        return stack

    @staticmethod
    def _at(i: int, core: Any) -> tuple[Any, ...]:
        """The index of a position."""
        return (..., i, *(slice(None),) * len(core))

    def cotangents(self, grad_state: Any) -> dict[str, Any]:
        """The fields of the gradient with respect to the states, checked."""
        name, count = "grad_state", len(self.positions)
        fields = {name: grad_state}
        if not self.one_array:
            fields = _state.named(self.function, name, grad_state, self.cores, any_scale=True)
        for field, x in fields.items():
            core = self._core(field)
            _state.checked_field(
                self.function, field, x, self.call.batch, (count, *core), self.wide
            )
        return fields

    def _core(self, field: str) -> Shape:
        core: Shape = getattr(self.cores, field.partition(".")[2] or "s")
        return core

    def sum(self, after: Any, cotangents: dict[str, Any], end: int) -> Any:
        """The gradient with respect to the state at a position: that of later tokens, and the
        cotangents of the position."""
        total = {}
        for name, x in cotangents.items():
            core, field = self._core(name), name.partition(".")[2]
            later = after if after is None or self.one_array else getattr(after, field)
            here = [x[self._at(i, core)] for i, p in enumerate(self.positions) if p == end]
            lead = x.shape[: x.ndim - len(core) - 1]
            total[field] = np.zeros((*lead, *core), x.dtype) if later is None else later
            for y in here:
                total[field] = total[field] + y
        if self.one_array:
            return total[""]
        return State(**total)

    def joined(self, grads: list[tuple[slice, list[Any]]]) -> tuple[Any, ...]:
        """The gradient of each operand, from those of the segments."""
        present = [
            (row, x, axis)
            for row, x, axis in zip(self._rows, self.operands, self.axes, strict=True)
            if x is not None
        ]
        return tuple(
            self._join(row, axis, [(rows, part[i]) for rows, part in grads])
            for i, (row, _, axis) in enumerate(present)
        )

    def _join(self, row: Any, axis: int | None, parts: list[tuple[slice, Array]]) -> Array:
        dtype = parts[0][1].dtype
        if self.narrow != self.wide and not row.state_dtype:
            dtype = self.narrow
        if axis is None:
            exact = np.result_type(parts[0][1].dtype, np.float64)
            total = sum(x.astype(exact) for _, x in parts)
            return np.asarray(total, parts[0][1].dtype).astype(dtype, copy=False)
        shape = list(parts[0][1].shape)
        shape[axis] = self.n
        grad = np.empty(shape, dtype)
        for rows, x in parts:
            grad[(*(slice(None),) * axis, rows)] = x
        return grad


def positions(function: str, x: Any, n: int) -> list[int]:
    """``state_at``: numbers of tokens, 0 to n, in any order."""
    x = _check.integers(function, "state_at", x)
    if x.ndim != 1:
        raise ValueError(f"{function}: state_at has shape {x.shape}; expected (positions,)")
    if x.size and np.maximum.reduce(x.view(np.uintp)) > n:  # or negative
        raise ValueError(
            f"{function}: state_at has values from {x.min()} to {x.max()}; expected 0 to {n}, the "
            "number of tokens"
        )
    found: list[int] = x.tolist()
    return found


def _is_number(x: Any) -> bool:
    """Whether it is None, or a number of Python's, which has no axis."""
    return x is None or isinstance(x, (int, float, complex))


def _overlap(out: Any, x: Any) -> bool:
    return isinstance(out, np.ndarray) and isinstance(x, np.ndarray) and np.may_share_memory(out, x)
