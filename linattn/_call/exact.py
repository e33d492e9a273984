"""States that carry what rounding took from their sums, so that a cut changes no bit.

Long sums are compensated: beside s and z, kernels hold what the additions so far have lost, and add
it with the next chunk.  A call that begins or ends with an `ExactState` passes that on.  Its gufunc
gets twice as many rows of states as there are sequences: those of the second half are what the
first half has lost, which the least begin says (operands.def).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from .._core import checks
from .._core.gufuncs import run
from .._states import state_arrays
from .._states.state_arrays import ExactState, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .._core.layout import Call
    from .._states.state_arrays import Sequences
    from .._types import Array, Cores

N = TypeVar("N")  # a number, or a symbol for one

#: The begin of rows that hold what others have lost.
_SECOND_HALF = np.iinfo(np.intp).min


def wanted(function: str, return_state: Any) -> bool:
    """Whether ``return_state`` asks for an `ExactState`, even where nothing is carried."""
    if type(return_state) is not str:
        if type(return_state) is not bool:
            checks.flag(function, "return_state", return_state)
        return False
    if return_state != "exact":
        raise ValueError(
            f"{function}: return_state is {return_state!r}; expected True, False or 'exact'"
        )
    return True


def refuse(function: str, return_state: Any, initial_state: Any, where: str) -> None:
    """Raise if a call that cannot carry what rounding took is to do so."""
    checks.no_string(function, return_state, f" {where}")
    if type(initial_state) is ExactState:
        raise ValueError(
            f"{function}: initial_state is an ExactState; expected a linattn.State {where}"
        )


def refuse_in_place(function: str, state: Any) -> None:
    """Raise if a step that drops what a state carries is to update it in place."""
    if type(state) is ExactState:
        raise ValueError(
            f"{function}: state is an ExactState; expected a linattn.State(s, z) to update in "
            "place, as a step drops what it carries"
        )


def columns(cores: Mapping[str, tuple[N, ...]]) -> tuple[N, N | int]:
    """The columns of s in `ExactState.lost`, and of z: as many where z has the axes of s, else
    one."""
    s, z = cores["s"], cores.get("z")
    return s[-1], 0 if z is None else s[-1] if len(z) == len(s) else 1


def parts(cores: Cores, lost: Any) -> Iterator[Any]:
    """What each field has lost, of `ExactState.lost`; None for nothing."""
    m, _ = columns(cores)
    for field, core in cores.items():
        if lost is None or field == "log_scale":
            yield None
        elif field == "s":
            yield lost[..., :m]
        else:
            yield lost[..., m:] if len(core) == len(cores["s"]) else lost[..., m]


def joined(cores: Cores, lost: Iterable[Any]) -> list[Any]:
    """The columns of `ExactState.lost`, of what each field has lost."""
    return [
        x if len(core) == len(cores["s"]) else x[..., None]
        for (field, core), x in zip(cores.items(), lost, strict=True)
        if field != "log_scale"
    ]


def apart(
    forward: Callable[..., Any], operands: tuple[Any, ...], *, initial_state: Any, lost: Any,
    **options: Any,
) -> tuple[Any, State, Any]:  # fmt: skip
    """The output, the last state and what it has lost, from a `State` and what that has lost."""
    state = initial_state if lost is None else ExactState(*initial_state, lost=lost)
    o, end = forward(operands, initial_state=state, return_state="exact", **options)
    return o, State(*end), end.lost


class Carried(NamedTuple):
    """A call that carries what its sums lose.

    ``cores`` are the shapes of a state's arrays with the axis of sequences, which a state of one
    sequence lacks.
    """

    function: str
    call: Call
    packing: Sequences
    cores: Cores

    def run(
        self, gufunc: np.ufunc, arrays: tuple[Any, ...], start: tuple[Any, ...], state: Any,
        out: Array | None,
    ) -> tuple[Array, ExactState]:  # fmt: skip
        """The output and the last state of a call that begins with the arrays ``start`` of
        ``state``; Ellipsis stands for zeros."""
        doubled = [
            self._both(field, x, lost)
            for field, x, lost in zip(
                self.cores, start, parts(self.cores, self._lost(state)), strict=True
            )
        ]
        o, *end = run(
            gufunc, (*arrays, *self._indices(), *doubled), (out, *(None for _ in doubled))
        )
        return o, self._after(end)

    def _indices(self) -> tuple[Array, Array, Array]:
        """begin, end and keys of the sequences and of the second half, which has no tokens."""
        begin, end, keys, _, count = self.packing
        begin = np.zeros(1, np.intp) if begin is ... else begin
        end = np.full(1, self.call.fit.sizes["n"]) if end is ... else end
        keys = end - begin if keys is ... else keys
        none = np.zeros((*keys.shape[:-1], count), np.intp)
        second = np.zeros(count, np.intp)
        return (
            np.concatenate((begin, np.full(count, _SECOND_HALF))),
            np.concatenate((end, second)),
            np.concatenate((keys, none), -1),
        )

    def _lost(self, state: Any) -> Any:
        """What a state has lost, checked, with the axis of sequences; None if nothing."""
        if type(state) is not ExactState:
            return None
        lead = self.cores["s"][not self.packing.packed : -1]
        core = *lead, sum(columns(self.cores))
        name, dtype = "initial_state.lost", self.call.state_dtype
        state_arrays.checked_field(self.function, name, state.lost, self.call.batch, core, dtype)
        return state.lost if self.packing.packed else np.expand_dims(state.lost, -len(core) - 1)

    def _both(self, field: str, x: Any, lost: Any) -> Array:
        """A field of all sequences, followed by what it has lost."""
        count, *own = self.cores[field]
        both = np.zeros((*self.call.batch, 2 * count, *own), self.call.state_dtype)
        if x is not ...:
            both[self._half(field, 0)] = x
        if lost is not None:
            both[self._half(field, 1)] = lost
        return both

    def _half(self, field: str, i: int) -> tuple[Any, ...]:
        """The index of the first or second half of the rows of a field."""
        count, *own = self.cores[field]
        return ..., slice(i * count, (i + 1) * count), *(slice(None),) * len(own)

    def _after(self, end: list[Array]) -> ExactState:
        """The state of the arrays that the gufunc returned."""
        fields: dict[str, Array] = {}
        rests = []
        for (field, core), x in zip(self.cores.items(), end, strict=True):
            first, lost = (x[self._half(field, i)] for i in (0, 1))
            if not self.packing.packed:
                first, lost = (y.squeeze(-len(core)) for y in (first, lost))
            fields[field] = first.copy()
            rests.append(lost)
        return ExactState(**fields, lost=np.concatenate(joined(self.cores, rests), -1))
