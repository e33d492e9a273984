"""Calls of the fused steps: their operands, checked, as the gufuncs take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core.gufuncs import internal_ufuncs, run
from .._core.summaries import shown_fields
from .._linattn import pool_call
from .._states import state_arrays
from . import pools
from .fused_checks import Checks, Plan, Row
from .plain import present

if TYPE_CHECKING:
    from .._types import Array, Shape

_MOST_PLANS = 256


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
        #: Plans of earlier calls by their shapes, dtypes and options.
        self._plans: dict[Any, Plan] = {}

    def step(
        self, state: Any, in_place: Any, state_indices: Any, **given: Any
    ) -> tuple[Array, FusedState]:
        """The output and the state after the token, of operands and options by name."""
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
        arrays = {x.name: given[x.name] for x in self.operands}
        options = [given[x] for x in self.options]
        key: Any = None
        try:
            key = (pooled, *options, *map(type, options), *[
                y if y is None else (type(y), y.shape, y.dtype)
                for y in (*arrays.values(), conv, s)
            ])  # fmt: skip
            plan = self._plans.get(key)
        except (AttributeError, TypeError):  # no array, or an option that cannot be a key
            key = plan = None
        if plan is None:
            checks = Checks(self, arrays, given, conv, s)
            plan = checks.plan(pooled=pooled)
            plain = all([y is None or type(y) is np.ndarray for y in arrays.values()])
            if key is not None and plain:
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
            arrays |= checks.arrays
        return Call(self, plan, arrays, (conv, s))


class Call(NamedTuple):
    """A checked call."""

    row: Row
    plan: Plan
    arrays: dict[str, Any]
    state: tuple[Any, Any]

    def run(self, in_place: Any, state_indices: Any = None) -> tuple[Array, FusedState]:
        if state_indices is not None:
            return self._run_rows(state_indices)
        plan, (conv, s) = self.plan, self.state
        (n, _, m), lead, fields = plan.core, plan.lead, present((s, conv))
        o = np.empty((*lead, n, m), plan.dtype)
        if in_place:
            given = {"state.conv": (conv, 2), "state.s": (s, 3)}
            given = {name: x for name, x in given.items() if x[0] is not None}
            state_arrays.updated(plan.name, given, lead)
            run(internal_ufuncs[f"_{plan.gufunc}"], self._inputs(), (o, *fields))
            return o.reshape(*lead, n * m), FusedState(conv, s)
        after: list[Any] = [None]
        if conv is not None:  # by tap, as kernels read it fastest
            shape = *lead, plan.columns, self.arrays["x"].shape[-1]
            after.append(np.empty(shape, plan.wide).swapaxes(-1, -2))
        gufunc = internal_ufuncs[plan.gufunc]
        _, s, *after = run(gufunc, (*self._inputs(), *fields), (o, *after))
        return o.reshape(*lead, n * m), FusedState(after[0] if after else None, s)

    def _run_rows(self, indices: Any) -> tuple[Array, FusedState]:
        """The call on rows of a pool, which it updates."""
        plan, state = self.plan, FusedState(*self.state)
        (n, _, m), lead, indices = plan.core, plan.lead, self.rows(indices)
        o = np.empty((*lead, n, m), plan.dtype)
        gufunc, fields = internal_ufuncs[f"_{plan.gufunc}"], present((state.s, state.conv))
        if pool_call(indices, gufunc, *self._inputs(), o, *fields) is NotImplemented:
            rows = FusedState(*(None if x is None else x[indices] for x in state))
            o, _ = self._replace(state=rows).run(in_place=True)
            for x, y in zip(present(state), present(rows), strict=True):
                x[indices] = y
        return o.reshape(*lead, n * m), state

    def rows(self, indices: Any, *, written: bool = True) -> Array:
        """The rows, once the pool is checked, and that it can be written to."""
        plan, (conv, s) = self.plan, self.state
        fields: dict[str, tuple[Any, Shape]] = {"state.s": (s, plan.core)}
        if conv is not None:
            fields["state.conv"] = conv, (self.arrays["x"].shape[-1], plan.columns)
        rows = pools.checked_rows(plan.name, "state", fields, plan.lead, indices, written=written)
        for field, (x, _) in fields.items():
            if x.dtype != plan.wide:
                raise TypeError(f"{plan.name}: {field} has dtype {x.dtype}; expected {plan.wide}")
        return rows

    def _inputs(self) -> tuple[Any, ...]:
        """Arrays and numbers as the gufunc takes them."""
        plan, inputs = self.plan, []
        n, d, m = plan.core
        for x in self.row.operands:
            y = self.arrays[x.name]
            if y is None:
                continue
            kind = plan.wide if x.state_dtype else plan.dtype
            if y.dtype is not kind and y.dtype != kind:
                y = y.astype(kind)
            if x.dims == "nm":
                y = y.reshape(*y.shape[:-1], n, m)
            elif x.channels and plan.by_channel and y.ndim == 1:
                y = np.broadcast_to(y[:, None], (n, d))
            inputs.append(y)
        return (*inputs, *plan.numbers)
