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

from .._core import checks
from .._core.lazy import is_lazy
from .._core.settings import one_isa
from .._states import state_arrays
from .._states.state_arrays import State
from . import positions

if TYPE_CHECKING:
    from .._types import Array, Shape
    from .interface import Interface


@one_isa()
def call(
    r: Interface, method: str, operands: tuple[Any, ...], *, state_indices: Any = None,
    state_at: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """``r.method(operands, **options)`` on rows of a pool, or with states after some tokens."""
    function = r.names[method]
    if is_lazy((*operands, options.get("grad_out"))):
        name = "state_at" if state_indices is None else "state_indices"
        raise TypeError(
            f"{function}: {name} is given and an operand is a dask array; expected NumPy arrays: "
            "call compute() first"
        )
    if method == "step":
        return _step(r, operands, state_indices, **options)
    if method == "backward":
        if state_indices is not None:
            pool = _Pool(r, method, operands, options["initial_state"], state_indices, options)
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
    pool = _Pool(r, "step", operands, state, indices, options, written=True)
    rows = pool.rows()
    o, _ = r.step(operands, rows, in_place=True, **options)
    pool.write(rows)
    return o, state


def _forward(
    r: Interface, operands: Any, indices: Any, state_at: Any, *, initial_state: Any,
    return_state: Any, **options: Any,
) -> Any:  # fmt: skip
    pool = _Pool(
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


class _Pool:
    """The rows of a pool that a call uses, checked."""

    def __init__(
        self, r: Interface, method: str, operands: Any, state: Any, indices: Any, options: Any,
        *, written: bool = False,
    ) -> None:  # fmt: skip
        self.function = r.names[method]
        self.name = "state" if method == "step" else "initial_state"
        read = self.read = r.read(self.function, operands, tokens=method != "step")
        batch, cu_seqlens = read.batch, options.get("cu_seqlens")
        if cu_seqlens is not None:
            self.axis, before, after = len(batch), batch, batch[:0]
            count = checks.integers(self.function, "cu_seqlens", cu_seqlens).size - 1
        elif batch:
            self.axis, before, after = 0, batch[:0], batch[1:]
            count = batch[0]
        else:
            raise no_batch(self.function)
        cores = r.state_cores(self.function, read, options)
        #: By the names that messages have.
        self.fields = self._fields(state, cores, (before, after), one_array=r.one_array)
        rows = next(iter(self.fields.values())).shape[self.axis]
        self.indices = checked_indices(
            self.function, self.name, indices, count, rows, different=written
        )
        if written:
            state_arrays.apart(self.function, self.fields)

    def _fields(
        self, state: Any, cores: State, around: tuple[Shape, Shape], *, one_array: bool
    ) -> dict[str, Any]:
        """The arrays of the pool."""
        if state is None:
            raise ValueError(
                f"{self.function}: {self.name} is None; expected a pool of states, as "
                "state_indices is given"
            )
        if one_array:
            _check_field(self.function, self.name, state, around, cores.s, {})
            return {self.name: state}
        found: dict[str, Any] = {}
        wanted = [core for core in cores if core is not None]
        for (name, x), core in zip(
            state_arrays.named(self.function, self.name, state, cores).items(), wanted, strict=True
        ):
            _check_field(self.function, name, x, around, core, found)
            found[name] = x
        return found

    def rows(self) -> Any:
        """The states of the batch: copies, as calls without indices take them."""
        rows = {name: np.take(x, self.indices, self.axis) for name, x in self.fields.items()}
        if self.name in rows:
            return rows[self.name]
        return State(**{name.rpartition(".")[2]: x for name, x in rows.items()})

    def write(self, state: Any) -> None:
        """Write the states of the batch to their rows."""
        arrays = [state] if self.name in self.fields else [x for x in state if x is not None]
        place = (*(slice(None),) * self.axis, self.indices)
        for x, y in zip(self.fields.values(), arrays, strict=True):
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
    if not lead:
        raise no_batch(function)
    found: dict[str, Any] = {}
    for field, (x, core) in fields.items():
        _check_field(function, field, x, ((), lead[1:]), core, found)
        found[field] = x
    if written:
        state_arrays.apart(function, found)
    rows = next(iter(found.values())).shape[0]
    return checked_indices(function, name, indices, lead[0], rows, different=True)


def no_batch(function: str) -> ValueError:
    return ValueError(
        f"{function}: the operands have no leading axes; expected one at least, as state_indices "
        "is given"
    )


def _check_field(
    function: str, name: str, x: Any, around: tuple[Shape, Shape], core: Shape,
    others: dict[str, Any],
) -> None:  # fmt: skip
    """Check an array of a pool, with leading axes ``around`` that of the rows; its dtype is checked
    with that of the rows."""
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a NumPy array")
    before, after = around[0], (*around[1], *core)
    axis = len(before)
    if x.ndim <= axis or (x.shape[:axis], x.shape[axis + 1 :]) != (before, after):
        expected = ", ".join(map(str, (*before, "rows", *after)))
        raise ValueError(
            f"{function}: {name} has shape {x.shape}; expected ({expected}), a pool, as "
            "state_indices is given"
        )
    for other, y in others.items():
        if y.shape[axis] != x.shape[axis]:
            raise ValueError(
                f"{function}: {name} has {x.shape[axis]} rows; expected {y.shape[axis]}, as "
                f"{other} has"
            )


def checked_indices(
    function: str, name: str, x: Any, count: int, rows: int, *, different: bool
) -> Array:
    """``state_indices``: a row of the pool of that name for each entry of the batch.

    They are a copy: what is written before their last use may be in their memory.
    """
    x = checks.integers(function, "state_indices", x).copy()
    if x.shape != (count,):
        raise ValueError(f"{function}: state_indices has shape {x.shape}; expected ({count},)")
    if x.size and np.maximum.reduce(x.view(np.uintp)) >= rows:  # or negative
        raise ValueError(
            f"{function}: state_indices has values from {x.min()} to {x.max()}; expected 0 to "
            f"{rows - 1}, as {name} has {rows} rows"
        )
    ordered = np.sort(x)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if different and twice.size:
        raise ValueError(
            f"{function}: state_indices has {twice[0]} twice; expected different rows, as they are "
            "written"
        )
    return x
