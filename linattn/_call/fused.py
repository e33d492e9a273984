"""Calls of the fused steps: their operands, checked, as the gufuncs take them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core import checks
from .._core.gufuncs import internal_ufuncs, run, run_in_place
from .._core.summaries import shown_fields
from .._linattn import pool_call
from .._states import state_arrays
from . import pools
from .fused_checks import Checks, Plan, Row

if TYPE_CHECKING:
    from .._types import Array

MOST_PLANS = 256


class FusedState(NamedTuple):
    """The state of a layer with a short convolution and a memory.

    Parameters
    ----------
    conv : ndarray, shape (..., c, w - 1), or None
        The last inputs of the convolution, as in `causal_conv1d_step`; None without one.
    s : ndarray, shape (..., n, d, m)
        The memory of each head, as in `gated_delta_step`.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> linattn.FusedState(np.zeros((2, 12, 3)), np.zeros((2, 1, 4, 4))).s.shape
    (2, 1, 4, 4)
    """

    conv: Any  # an array, or a tensor in linattn.torch
    s: Any

    def __repr__(self) -> str:
        return shown_fields(self)


class Fused(Row):
    """A fused step."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._arrays_of = itemgetter(*(x.name for x in self.operands))
        self._options_of = itemgetter(*self.options)
        #: Plans of earlier calls by their shapes, dtypes and options.
        self._plans: dict[Any, Plan] = {}

    def step(
        self, state: Any, in_place: Any, state_indices: Any, **given: Any
    ) -> tuple[Array, FusedState]:
        """The output and the state after the token, of operands and options by name."""
        if type(in_place) is not bool:
            in_place = checks.flag(self.name, "in_place", in_place)
        call = self.checked(state, given, pooled=state_indices is not None)
        return call.run(in_place, state_indices)

    def checked(self, state: Any, given: Mapping[str, Any], *, pooled: bool = False) -> Call:
        """A checked call; a pool is checked with the rows of the call."""
        if not (isinstance(state, tuple) and len(state) == 2):
            raise TypeError(
                f"{self.name}: state is a {type(state).__name__}; expected a "
                "linattn.FusedState(conv, s)"
            )
        conv, s = state
        arrays, options = self._arrays_of(given), self._options_of(given)
        key: Any = None
        try:
            key = (pooled, options, *map(type, options), *[
                y if y is None else (type(y), y.shape, y.dtype) for y in (*arrays, conv, s)
            ])  # fmt: skip
            plan = self._plans.get(key)
        except (AttributeError, TypeError):  # no array, or an option that cannot be a key
            key = plan = None
        if plan is None:
            read = Checks(self, given, conv, s)
            plan = read.plan(pooled=pooled)
            plain = all([y is None or type(y) is np.ndarray for y in arrays])
            if key is not None and plain:
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
            arrays = tuple([read.arrays.get(x.name) for x in self.operands])
        return Call(plan, arrays, {"s": s} if conv is None else {"s": s, "conv": conv})


class Call(NamedTuple):
    """A checked call."""

    plan: Plan
    arrays: tuple[Any, ...]  #: of all operands, None for those left out
    state: dict[str, Array]  #: the arrays of the state by field, as the gufunc takes them

    def run(self, in_place: Any, state_indices: Any = None) -> tuple[Array, FusedState]:
        if state_indices is not None:
            return self._run_rows(state_indices)
        plan, fields = self.plan, self.state.values()
        (n, _, m), lead = plan.cores["s"], plan.lead
        o = np.empty((*lead, n, m), plan.dtype)
        if in_place:
            named = {f"state.{x}": y for x, y in reversed(self.state.items())}
            state_arrays.updated(plan.name, named, lead, reversed(plan.cores.values()))
            gufunc = internal_ufuncs[f"_{plan.gufunc}"]
            run_in_place(gufunc, self._inputs(), o, [*fields], plan.wide)
            return o.reshape(*lead, n * m), self.given
        after = [np.empty((*lead, *plan.cores["s"]), self.state["s"].dtype)]
        if "conv" in plan.cores:  # by tap, as kernels read it fastest
            c, columns = plan.cores["conv"]
            kind = self.state["conv"].dtype
            after.append(np.empty((*lead, columns, c), kind).swapaxes(-1, -2))
        gufunc = internal_ufuncs[plan.gufunc]
        _, s, *after = run(gufunc, (*self._inputs(), *fields), (o, *after))
        return o.reshape(*lead, n * m), FusedState(after[0] if after else None, s)

    def _run_rows(self, indices: Any) -> tuple[Array, FusedState]:
        """The call on rows of a pool, which it updates."""
        plan, (n, _, m) = self.plan, self.plan.cores["s"]
        o = np.empty((*plan.lead, n, m), plan.dtype)
        gufunc, fields = internal_ufuncs[f"_{plan.gufunc}"], self.state.values()
        operands = gufunc, *self._inputs(), o, *fields
        if (
            pool_call(indices, *operands) is NotImplemented  # which checks plain arrays itself
            and pool_call(indices := self.rows(indices), *operands) is NotImplemented
        ):
            rows = {field: x[indices] for field, x in self.state.items()}
            o, _ = self._replace(state=rows).run(in_place=True)
            for field, x in self.state.items():
                x[indices] = rows[field]
        return o.reshape(*plan.lead, n * m), self.given

    @property
    def given(self) -> FusedState:
        """The state as users have it."""
        return FusedState(self.state.get("conv"), self.state["s"])

    def rows(self, indices: Any, *, written: bool = True) -> Array:
        """The rows, once the pool is checked, and that it can be written to."""
        plan = self.plan
        fields = {f"state.{x}": (self.state[x], core) for x, core in plan.cores.items()}
        rows = pools.checked_rows(plan.name, "state", fields, plan.lead, indices, written=written)
        for field, (x, _) in fields.items():
            state_arrays.checked_dtype(plan.name, field, x, plan.wide, halves=plan.half_states)
        return rows

    def _inputs(self) -> tuple[Any, ...]:
        """Arrays and numbers as the gufunc takes them."""
        pairs = zip(self.arrays, self.plan.forms, strict=True)
        arrays = [x if form is None else form(x) for x, form in pairs if x is not None]
        return *arrays, *self.plan.numbers
