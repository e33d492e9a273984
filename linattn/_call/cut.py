"""A call cut along its tokens at some positions: its operands, options and states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks
from .._core.dtypes import result_dtype, state_dtype
from .._states import state_arrays
from .mapped import outside

if TYPE_CHECKING:
    from .._types import Array, Shape
    from .interface import Interface


class Segments:
    """The operands of a call, arrays or tensors, cut along their tokens at some positions.

    Positions are numbers of tokens from the first one, or from the last one in reverse.
    """

    def __init__(
        self, operands: Sequence[Any], axes: Sequence[int | None], n: int, positions: list[int],
        *, reverse: bool,
    ) -> None:  # fmt: skip
        self.operands, self.n, self.positions, self.reverse = operands, n, positions, reverse
        #: The axis of tokens of each operand; None if it has none.
        self.axes = axes
        self.ends = sorted({*positions})
        edges = [0, *self.ends]
        if edges[-1] < n or len(edges) == 1:
            edges.append(n)
        self.segments = [*pairwise(edges)]

    def is_cut(self, x: Any, axis: int | None) -> bool:
        """Whether the tokens do not share the operand."""
        return axis is not None and x.shape[axis] == self.n

    def rows(self, begin: int, end: int) -> slice:
        """The tokens of a segment."""
        return slice(self.n - end, self.n - begin) if self.reverse else slice(begin, end)

    def part(self, begin: int, end: int) -> tuple[Any, ...]:
        """The operands of a segment."""
        rows = self.rows(begin, end)
        return tuple(
            x[(*(slice(None),) * axis, rows)] if axis is not None and self.is_cut(x, axis) else x
            for x, axis in zip(self.operands, self.axes, strict=True)
        )

    def token(self, begin: int) -> tuple[Any, ...]:
        """The operands of a segment of one token, as steps take them."""
        i = self.rows(begin, begin + 1).start
        return tuple(
            x if axis is None
            else x[(*(slice(None),) * axis, i if self.is_cut(x, axis) else 0, ...)]
            for x, axis in zip(self.operands, self.axes, strict=True)
        )  # fmt: skip


class Cut(Segments):
    """A call of ``r.forward`` or ``r.backward``, checked."""

    def __init__(
        self, r: Interface, method: str, operands: tuple[Any, ...], state_at: Any,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.r, self.function, self._options = r, r.names[method], options
        self._method = method
        if options.get("cu_seqlens") is not None:
            raise ValueError(
                f"{self.function}: cu_seqlens is given; expected None, as state_at is given"
            )
        self.call = r.read(self.function, operands)
        n = self.call.fit.sizes["n"]
        arrays = [x if _is_number(x) else np.asarray(x) for x in operands]
        super().__init__(
            arrays, self._axes(arrays), n, positions(self.function, state_at, n),
            reverse=bool(options.get("reverse")),
        )  # fmt: skip
        if options.get("key_lengths") is not None:
            lengths = state_arrays.checked_lengths(
                self.function, options["key_lengths"], self.n, self.call.batch
            )
            self._options = options | {"key_lengths": lengths}
        #: The shapes of a state's arrays, without leading axes, by field.
        self.cores = r.state_cores(self.function, self.call, options)

    # --- tokens --------------------------------------------------------------

    def _axes(self, operands: Sequence[Any]) -> list[int | None]:
        own = self.r.layout.own_axes([np.empty(0) if _is_number(x) else x for x in operands])
        return [
            x.ndim - rank if row.has_tokens and not _is_number(x) and x.ndim >= rank else None
            for row, x, rank in zip(self.r.operands, operands, own, strict=True)
        ]

    def options(self, begin: int, end: int) -> dict[str, Any]:
        """The options of a segment."""
        lengths = self._options.get("key_lengths")
        if lengths is None:
            return self._options
        return self._options | {"key_lengths": np.clip(lengths - begin, 0, end - begin)}

    def step_options(self) -> dict[str, Any] | None:
        """The options of a step; None if steps do not take what the call has."""
        if self._options.get("key_lengths") is not None:
            return None
        if self.r.mapped and outside(self._options["feature_map"]):
            return None
        lacking = "key_lengths", "cu_seqlens", "reverse"
        return {name: x for name, x in self._options.items() if name not in lacking}

    def check_options(self, **more: Any) -> None:
        """Check all options by a call of no tokens: those of segments and steps would name others
        than the function."""
        getattr(self.r, self._method)(self.part(0, 0), **more, **self.options(0, 0))

    # --- states --------------------------------------------------------------

    def arrays(self, state: Any) -> list[Any]:
        """The arrays of a state, in the order of `cores`."""
        fields = self.r.fields_of(state)
        return [fields[x] for x in self.cores]

    def state(self, arrays: Sequence[Any]) -> Any:
        """The state of such arrays."""
        return self.r.public(dict(zip(self.cores, arrays, strict=True)))

    def checked(self, name: str, state: Any, dtype: Any, *inner: int) -> Any:
        """A state with these axes before its own ones, or its gradient."""
        r, function = self.r, self.function
        found = state_arrays.named(
            function, name, state, self.cores, one_array=r.one_array, holder=r.holder, pooled=True,
            any_scale=True,
        )  # fmt: skip
        for (field, x), core in zip(found.items(), self.cores.values(), strict=False):
            state_arrays.checked_field(function, field, x, self.call.batch, (*inner, *core), dtype)
        return r.public(dict(zip(self.cores, found.values(), strict=False)))


class GradientCut(Cut):
    """A call of ``r.backward``, computed in 32 bits at least: sums need more than 16."""

    def __init__(
        self, r: Interface, operands: tuple[Any, ...], grad_out: Any, state_at: Any,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(r, "backward", operands, state_at, options)
        grad_out = r.cotangent(self.function, grad_out, self.call)
        typed = *self.call.typed, grad_out
        self.narrow, self.wide = result_dtype(*typed), state_dtype(*typed)
        if self.narrow != self.wide:
            self.operands = [self._widened(x) for x in self.operands]
            grad_out = self._widened(grad_out)
        self.grad_out = np.broadcast_to(grad_out, self.call.shape)

    def _widened(self, x: Any) -> Any:
        return x.astype(self.wide) if isinstance(x, np.ndarray) and x.itemsize == 2 else x

    def joined(self, grads: list[tuple[slice, list[Any]]]) -> tuple[Any, ...]:
        """The gradient of each operand, from those of the segments."""
        present = [
            (row, axis if self.is_cut(x, axis) else None)
            for row, x, axis in zip(self.r.operands, self.operands, self.axes, strict=True)
            if x is not None
        ]
        return tuple(
            self._join(row, axis, [(rows, part[i]) for rows, part in grads])
            for i, (row, axis) in enumerate(present)
        )

    def _join(self, row: Any, axis: int | None, parts: list[tuple[slice, Array]]) -> Array:
        first = parts[0][1]
        rounded = self.narrow != self.wide and not row.state_dtype
        dtype = self.narrow if rounded else first.dtype
        if axis is None:  # the segments share it
            total = sum(x.astype(np.result_type(first, np.float64)) for _, x in parts)
            return np.asarray(total, first.dtype).astype(dtype, copy=False)
        shape: Shape = (*first.shape[:axis], self.n, *first.shape[axis + 1 :])
        grad = np.empty(shape, dtype)
        for rows, x in parts:
            grad[(*(slice(None),) * axis, rows)] = x
        return grad


def positions(function: str, x: Any, n: int) -> list[int]:
    """``state_at``: numbers of tokens, 0 to n, in any order."""
    x = checks.integers(function, "state_at", x)
    if x.ndim != 1:
        raise ValueError(f"{function}: state_at has shape {x.shape}; expected (positions,)")
    checks.in_range(function, "state_at", x, n, "the number of tokens")
    found: list[int] = x.tolist()
    return found


def _is_number(x: Any) -> bool:
    """Whether it is None, or a number of Python's, which has no axis."""
    return x is None or isinstance(x, (int, float, complex))
