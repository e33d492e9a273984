"""Calls of the fused steps: their operands, checked, as the gufuncs take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core.checks import integer, silu
from .._core.gufuncs import internal_ufuncs, run
from .._core.summaries import shown_fields
from .._linattn import pool_call
from .._states import state_arrays
from . import pools
from .fused_checks import Checks, Plan
from .tables import MAPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._types import Array, Shape


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


def gated_delta_call(
    x: Any, a: Any, b: Any, state: Any, *, A_log: Any, dt_bias: Any, lower_bound: Any = None,
    beta_scale: Any = 1.0, weight: Any = None, bias: Any = None, activation: Any = "silu",
    z: Any = None, norm_weight: Any = None, norm_eps: Any = 1e-6, norm_activation: Any = "silu",
    feature_map: Any = "l2norm", scale: Any = 1.0, pooled: bool = False,
) -> Call:  # fmt: skip
    """A checked call of `fused_gated_delta_step`; a pool is checked with the rows of the call."""
    tokens = {"x": x, "a": a, "b": b, "weight": weight, "bias": bias, "z": z,
              "norm_weight": norm_weight}  # fmt: skip
    rates = {"A_log": A_log, "dt_bias": dt_bias}
    options = (lower_bound, beta_scale, activation, norm_eps, norm_activation, feature_map, scale)
    return _call("fused_gated_delta_step", tokens, rates, state, options, _gated_delta_plan, pooled)


def gated_call(
    x: Any, dt: Any, state: Any, *, A_log: Any, dt_bias: Any, D: Any = None,
    time_step_limit: Any = None, weight: Any = None, bias: Any = None, activation: Any = "silu",
    z: Any = None, norm_weight: Any = None, norm_eps: Any = 1e-5, norm_groups: Any = 1,
    scale: Any = 1.0, pooled: bool = False,
) -> Call:  # fmt: skip
    """A checked call of `fused_gated_step`, as above."""
    tokens = {"x": x, "dt": dt, "weight": weight, "bias": bias, "z": z, "norm_weight": norm_weight}
    rates = {"A_log": A_log, "dt_bias": dt_bias, "D": D}
    if type(norm_groups) is not int:  # True and 1.0 would find the plan of 1
        norm_groups = integer("fused_gated_step", "norm_groups", norm_groups)
    options = (time_step_limit, activation, norm_eps, norm_groups, scale)
    return _call("fused_gated_step", tokens, rates, state, options, _gated_plan, pooled)


class Call(NamedTuple):
    """A checked call."""

    plan: Plan
    tokens: dict[str, Any]
    rates: dict[str, Any]
    state: tuple[Any, Any]

    def run(self, in_place: Any, state_indices: Any = None) -> tuple[Array, FusedState]:
        if state_indices is not None:
            return self._run_rows(state_indices)
        plan, (conv, s) = self.plan, self.state
        (n, _, m), lead, c = plan.core, plan.lead, self.tokens["x"].shape[-1]
        if in_place:
            given = {"state.conv": (conv, 2), "state.s": (s, 3)}
            given = {name: x for name, x in given.items() if x[0] is not None}
            state_arrays.updated(plan.name, given, lead)
        o = np.empty((*lead, n, m), plan.dtype)
        # By tap, as kernels read it fastest.
        before = np.zeros((0, c), plan.wide) if conv is None else conv.swapaxes(-1, -2)
        if in_place:
            after = np.zeros((*lead, 0, c), plan.wide) if conv is None else before
            run(internal_ufuncs[f"_{plan.gufunc}"], self._inputs(), (o, s, after))
        else:
            inputs = (*self._inputs(), s, before)
            _, s, after = run(internal_ufuncs[plan.gufunc], inputs, (o, None, None))
            conv = None if conv is None else after.swapaxes(-1, -2)
        return o.reshape(*lead, n * m), FusedState(conv, s)

    def _run_rows(self, indices: Any) -> tuple[Array, FusedState]:
        """The call on rows of a pool, which it updates."""
        plan, (conv, s) = self.plan, self.state
        (n, _, m), lead, c = plan.core, plan.lead, self.tokens["x"].shape[-1]
        indices = self.rows(indices)
        o = np.empty((*lead, n, m), plan.dtype)
        empty = np.zeros((len(s), *lead[1:], 0, c), plan.wide)
        states = s, empty if conv is None else conv.swapaxes(-1, -2)
        gufunc = internal_ufuncs[f"_{plan.gufunc}"]
        if pool_call(indices, gufunc, *self._inputs(), o, *states) is NotImplemented:
            rows = FusedState(*(None if x is None else x[indices] for x in self.state))
            o, _ = self._replace(state=rows).run(in_place=True)
            for x, y in zip(self.state, rows, strict=True):
                if x is not None:
                    x[indices] = y
        return o.reshape(*lead, n * m), FusedState(conv, s)

    def rows(self, indices: Any, *, written: bool = True) -> Array:
        """The rows, once the pool is checked, and that it can be written to."""
        plan, (conv, s) = self.plan, self.state
        fields: dict[str, tuple[Any, Shape]] = {"state.s": (s, plan.core)}
        if conv is not None:
            fields["state.conv"] = conv, (self.tokens["x"].shape[-1], plan.columns)
        rows = pools.checked_rows(plan.name, "state", fields, plan.lead, indices, written=written)
        for field, (x, _) in fields.items():
            if x.dtype != plan.wide:
                raise TypeError(f"{plan.name}: {field} has dtype {x.dtype}; expected {plan.wide}")
        return rows

    def _inputs(self) -> tuple[Any, ...]:
        """Arrays and numbers in the order of operators.def; empty arrays for what is left out."""
        plan, tokens, rates = self.plan, self.tokens, self.rates
        (n, d, m), kind = plan.core, plan.dtype
        x, weight, bias, z = (tokens[key] for key in ("x", "weight", "bias", "z"))
        norm, A_log, dt_bias = tokens["norm_weight"], rates["A_log"], rates["dt_bias"]
        first = (
            x,
            np.zeros((0, x.shape[-1]), kind) if weight is None else weight.T,
            np.zeros(0, kind) if bias is None else bias,
        )
        gate = np.zeros((n, 0), kind) if z is None else z.reshape(*z.shape[:-1], n, m)
        if "D" in rates:
            own = np.zeros(0, plan.wide) if rates["D"] is None else rates["D"]
            norm = np.zeros((n, 0), kind) if norm is None else norm.reshape(n, m)
            gates = tokens["dt"], A_log, dt_bias, own
        else:
            norm = np.zeros(0, kind) if norm is None else norm
            a = tokens["a"]
            if not plan.by_channel:
                a, dt_bias = a[..., None], dt_bias[:, None]
            elif dt_bias.ndim == 1:
                dt_bias = np.broadcast_to(dt_bias[:, None], (n, d))
            gates = a, tokens["b"], A_log, dt_bias
        return (*first, *gates, gate, norm, *plan.numbers)


#: Plans of earlier calls by their shapes, dtypes and options.
_PLANS: dict[Any, Plan] = {}
_MOST_PLANS = 256


def _call(
    name: str,
    tokens: dict[str, Any],
    rates: dict[str, Any],
    state: Any,
    options: tuple[Any, ...],
    plan_of: Callable[..., Plan],
    pooled: bool,
) -> Call:
    """A call of arrays of one dtype whose like has been checked before, or one checked now."""
    conv, s = _fields(name, state)
    key: Any = None
    plan = None
    try:
        key = (name, options, pooled, *[
            y if y is None else (type(y), y.shape, y.dtype)
            for y in (*tokens.values(), *rates.values(), conv, s)
        ])  # fmt: skip
        plan = _PLANS.get(key)
    except (AttributeError, TypeError):  # no array, or an option that cannot be a key
        key = None
    if plan is not None:
        wide = plan.wide
        rates = {x: y if y is None or y.dtype == wide else y.astype(wide) for x, y in rates.items()}
        return Call(plan, tokens, rates, (conv, s))
    checks = Checks(name, tokens, rates, conv, s)
    plan = plan_of(checks, *options)
    if not pooled:
        checks.check_state(plan.lead)
    plain = all([y is None or type(y) is np.ndarray for y in (*tokens.values(), *rates.values())])
    if key is not None and plain and checks.keep_their_dtypes(tokens):
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return Call(plan, checks.every(tokens), checks.every(rates), (conv, s))


def _gated_delta_plan(
    call: Checks, lower_bound: Any, beta_scale: Any, activation: Any, norm_eps: Any,
    norm_activation: Any, feature_map: Any, scale: Any,
) -> Plan:  # fmt: skip
    name, n, d, m = call.name, *call.core
    if not isinstance(feature_map, str) or feature_map not in MAPS:
        error = ValueError if isinstance(feature_map, str) else TypeError
        raise error(f"{name}: feature_map is {feature_map!r}; expected one of {', '.join(MAPS)}")
    by_channel = call.tokens["a"].ndim > call.tokens["b"].ndim
    call.expect("a", n, d) if by_channel else call.expect("a", n)
    call.expect("b", n)
    call.expect_alone("norm_weight", m)
    call.expect_rate("dt_bias", (n,), (n, d) if by_channel else (n,))
    bound = 0.0 if lower_bound is None else call.number("lower_bound", lower_bound)
    numbers = (
        silu(name, activation), float(lower_bound is not None), bound,
        call.number("beta_scale", beta_scale), call.number("scale", scale),
        call.positive("norm_eps", norm_eps), _by_sigmoid(name, norm_activation),
    )  # fmt: skip
    return call.plan(f"{name}_{feature_map}", numbers, by_channel)


def _gated_plan(
    call: Checks, time_step_limit: Any, activation: Any, norm_eps: Any, norm_groups: Any,
    scale: Any,
) -> Plan:  # fmt: skip
    name, n, _, m = call.name, *call.core
    call.expect("dt", n)
    call.expect_alone("norm_weight", n * m)
    call.expect_rate("dt_bias", (n,))
    if "D" in call.rates:
        call.expect_rate("D", (n,))
    groups = integer(name, "norm_groups", norm_groups)
    if n % groups:
        raise ValueError(f"{name}: norm_groups is {groups}; expected a divisor of {n}, the heads")
    numbers = (
        silu(name, activation), *call.limits(time_step_limit),
        call.number("scale", scale), call.positive("norm_eps", norm_eps), float(groups),
    )  # fmt: skip
    return call.plan(name, numbers)


def _fields(name: str, state: Any) -> tuple[Any, Any]:
    if isinstance(state, tuple) and len(state) == 2:
        return state
    raise TypeError(
        f"{name}: state is a {type(state).__name__}; expected a linattn.FusedState(conv, s)"
    )


def _by_sigmoid(name: str, x: Any) -> float:
    """``norm_activation`` as the kernel takes it."""
    if isinstance(x, str) and x in ("silu", "sigmoid"):
        return float(x == "sigmoid")
    error = ValueError if isinstance(x, str) else TypeError
    raise error(f"{name}: norm_activation is {x!r}; expected 'silu' or 'sigmoid'")
