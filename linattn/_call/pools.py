"""``state_indices``: states that are rows of a pool, as servers hold those of their requests.

Without indices a state has the leading axes of the operands, (B, ...), or (..., r) for r packed
sequences.  With them its first axis, or the axis of sequences, is that of the pool's rows: entry i
of the batch uses row ``state_indices[i]``.  Kernels find their rows in memory if the operands are
plain (src/ext/state_rows.c).  Other calls copy the rows, compute, and write them back at the end.
Either way nothing is written before all checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks, lazy
from .._core.settings import one_isa
from .._states import state_arrays
from .._states.state_arrays import State
from . import positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._types import Array, Shape
    from .interface import Interface


@one_isa()
def call(
    r: Interface, method: str, operands: tuple[Any, ...], *, state_indices: Any = None,
    state_at: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """``r.method(operands, **options)`` on rows of a pool, or with states after some tokens."""
    function = r.names[method]
    name = "state_at" if state_indices is None else "state_indices"
    lazy.refuse(function, (*operands, options.get("grad_out")), f"{name} is given and ")
    if method == "step":
        return _step(r, operands, state_indices, **options)
    if method == "backward":
        if state_indices is not None:
            pool = _Arrays(r, method, operands, options["initial_state"], state_indices, options)
            options["initial_state"] = pool.rows()
        if state_at is None:
            return r.backward(operands, **options)
        return positions.backward(r, operands, state_at, **options)
    if state_indices is None:
        return positions.forward(r, operands, state_at, **options)[:2]
    return _forward(r, operands, state_indices, state_at, **options)


def _step(
    r: Interface, operands: Any, indices: Any, *, state: Any, in_place: Any, **options: Any
) -> tuple[Array, Any]:
    pool = _Arrays(r, "step", operands, state, indices, options, written=True)
    rows = pool.rows()
    o, _ = r.step(operands, rows, in_place=True, **options)
    pool.write(rows)
    return o, state


def _forward(
    r: Interface, operands: Any, indices: Any, state_at: Any, *, initial_state: Any,
    return_state: Any, **options: Any,
) -> Any:  # fmt: skip
    pool = _Arrays(
        r, "forward", operands, initial_state, indices, options, written=bool(return_state)
    )
    pool.refuse_overlap(options["out"])
    if return_state and state_at is None:
        o = r.forward_in_rows(pool.read, pool.indices, [*pool.fields.values()], **options)
        if o is not NotImplemented:
            return o, initial_state
    rows = pool.rows()
    if state_at is not None:
        o, states, last = positions.forward(
            r, operands, state_at, initial_state=rows, return_state=return_state, **options
        )
    elif not return_state:
        return r.forward(operands, initial_state=rows, **options)
    else:
        o, last = r.forward(operands, initial_state=rows, return_state=True, **options)
        states = initial_state
    pool.write(last)
    return o, states


class Pool:
    """The rows of a pool that a call uses; its arrays may be tensors.

    Without packed sequences, whose ``count`` is given, the rows are in place of the first of the
    operands' leading axes.
    """

    def __init__(
        self, function: str, name: str, state: Any, lead: Shape, count: int | None = None,
        holder: type[Any] = State,
    ) -> None:  # fmt: skip
        if state is None:
            raise ValueError(
                f"{function}: {name} is None; expected a pool of states, as state_indices is given"
            )
        if count is None and not lead:
            raise ValueError(
                f"{function}: the operands have no leading axes; expected one at least, as "
                "state_indices is given"
            )
        self.function, self.name, self.holder = function, name, holder
        self._before, self._after = (lead[:0], lead[1:]) if count is None else (lead, lead[:0])
        self.axis = len(self._before)
        self.count = lead[0] if count is None else count
        self.fields: dict[str, Any] = {}  #: by the names that messages have

    def add(self, name: str, x: Any, core: Shape) -> None:
        """An array of the pool; its dtype is checked with that of the rows."""
        shape, axis, after = tuple(x.shape), self.axis, (*self._after, *core)
        if len(shape) <= axis or (shape[:axis], shape[axis + 1 :]) != (self._before, after):
            expected = ", ".join(map(str, (*self._before, "rows", *after)))
            raise ValueError(
                f"{self.function}: {name} has shape {shape}; expected ({expected}), a pool, as "
                "state_indices is given"
            )
        for other, y in self.fields.items():
            if y.shape[axis] != shape[axis]:
                raise ValueError(
                    f"{self.function}: {name} has {shape[axis]} rows; expected {y.shape[axis]}, "
                    f"as {other} has"
                )
        self.fields[name] = x

    @property
    def size(self) -> int:
        """How many rows there are."""
        found: int = next(iter(self.fields.values())).shape[self.axis]
        return found

    def pack(self, arrays: Sequence[Any]) -> Any:
        """A state of the kind of the pool's."""
        if self.name in self.fields:
            return arrays[0]
        names = (name.rpartition(".")[2] for name in self.fields)
        return self.holder(**dict(zip(names, arrays, strict=True)))

    def unpack(self, state: Any) -> list[Any]:
        """The arrays of such a state."""
        return [state] if self.name in self.fields else [x for x in state if x is not None]


class _Arrays(Pool):
    """The rows of a pool of arrays, checked."""

    def __init__(
        self, r: Interface, method: str, operands: Any, state: Any, indices: Any, options: Any,
        *, written: bool = False,
    ) -> None:  # fmt: skip
        function = r.names[method]
        name = "state" if method == "step" else "initial_state"
        read = self.read = r.read(function, operands, tokens=method != "step")
        packed, count = options.get("cu_seqlens"), None
        if packed is not None:
            count = checks.integers(function, "cu_seqlens", packed).size - 1
        super().__init__(function, name, state, read.batch, count, r.holder)
        cores = r.state_cores(function, read, options)
        fields = state_arrays.named(
            function, name, state, cores, one_array=r.one_array, holder=r.holder, pooled=True
        )
        for (field, x), core in zip(fields.items(), cores.values(), strict=True):
            checks.plain_array(function, field, x)
            self.add(field, x, core)
        self.indices = checked_indices(
            function, name, indices, self.count, self.size, different=written
        )
        if written:
            state_arrays.updated(function, self.fields)

    def rows(self) -> Any:
        """The states of the batch: copies, as calls without indices take them."""
        return self.pack([np.take(x, self.indices, self.axis) for x in self.fields.values()])

    def write(self, state: Any) -> None:
        """Write the states of the batch to their rows."""
        place = (*(slice(None),) * self.axis, self.indices)
        for x, y in zip(self.fields.values(), self.unpack(state), strict=True):
            x[place] = y

    def refuse_overlap(self, out: Any) -> None:
        """Refuse an output in the pool's memory."""
        for name, x in self.fields.items() if isinstance(out, np.ndarray) else ():
            if np.may_share_memory(x, out):
                raise ValueError(
                    f"{self.function}: out overlaps {name}; expected memory of its own, as "
                    "state_indices is given"
                )


def checked_rows(
    function: str, name: str, fields: dict[str, tuple[Any, Shape]], lead: Shape, indices: Any,
    *, written: bool,
) -> Array:  # fmt: skip
    """The rows of a step of a batch, in a pool of these arrays, each with a core.

    Unless they are ``written``, the arrays need not be writeable.
    """
    pool = Pool(function, name, fields, lead)
    for field, (x, core) in fields.items():
        checks.plain_array(function, field, x)
        pool.add(field, x, core)
    if written:
        state_arrays.updated(function, pool.fields)
    return checked_indices(function, name, indices, pool.count, pool.size, different=True)


def checked_indices(
    function: str, name: str, x: Any, count: int, rows: int, *, different: bool
) -> Array:
    """``state_indices``: a row of the pool of that name for each entry of the batch.

    They are a copy: what is written before their last use may be in their memory.
    """
    x = checks.integers(function, "state_indices", x).copy()
    if x.shape != (count,):
        raise ValueError(f"{function}: state_indices has shape {x.shape}; expected ({count},)")
    checks.in_range(function, "state_indices", x, rows - 1, f"as {name} has {rows or 'no'} rows")
    ordered = np.sort(x)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if different and twice.size:
        raise ValueError(
            f"{function}: state_indices has {twice[0]} twice; expected different rows, as they are "
            "written"
        )
    return x
