"""Calls of the fused steps: their operands, checked, as the gufuncs take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _check, _state
from ._dtypes import FAST, result_dtype, work_dtype
from ._gufuncs import internal_ufuncs, run
from ._operator import MAPS
from .conv import silu_number

if TYPE_CHECKING:
    from ._types import Array, DType, Shape


_USUAL = 1e38  #: numbers below are finite in every dtype


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


def gated_delta_call(
    x: Any, a: Any, b: Any, state: Any, *, A_log: Any, dt_bias: Any, lower_bound: Any = None,
    beta_scale: Any = 1.0, weight: Any = None, bias: Any = None, activation: Any = "silu",
    z: Any = None, norm_weight: Any = None, norm_eps: Any = 1e-6, norm_activation: Any = "silu",
    feature_map: Any = "l2norm", scale: Any = 1.0,
) -> tuple[FusedCall, str, tuple[Any, ...]]:  # fmt: skip
    """A checked call of `fused_gated_delta_step`, its gufunc, and the inputs of that."""
    call = FusedCall("fused_gated_delta_step", state, {
        "x": (x, 1), "a": (a, 1), "b": (b, 1), "weight": (weight, 2), "bias": (bias, 1),
        "z": (z, 1), "norm_weight": (norm_weight, 1),
    }, {"A_log": A_log, "dt_bias": dt_bias})  # fmt: skip
    name, n, d, m = call.name, *call.core
    if not isinstance(feature_map, str) or feature_map not in MAPS:
        raise _check.unknown_map(name, feature_map)
    by_channel = call.ndim("a") > call.ndim("b")
    call.expect("a", n, d) if by_channel else call.expect("a", n)
    call.expect("b", n)
    call.expect_alone("norm_weight", m)
    gates, biases = call.tokens["a"], call.rates["dt_bias"]
    biases = call.expect_rate("dt_bias", (n,), (n, d) if by_channel else (n,))
    if by_channel and biases.ndim == 1:
        biases = np.broadcast_to(biases[:, None], (n, d))
    if not by_channel:
        gates, biases = gates[..., None], biases[:, None]
    bound = 0.0 if lower_bound is None else call.number("lower_bound", lower_bound)
    inputs = (
        *call.convolution(), gates, call.tokens["b"], call.expect_rate("A_log", (n,)), biases,
        call.gate(), call.norm_weight(), silu_number(name, activation),
        float(lower_bound is not None), bound, call.number("beta_scale", beta_scale),
        call.number("scale", scale), call.number("norm_eps", norm_eps),
        _by_sigmoid(name, norm_activation),
    )  # fmt: skip
    return call, f"{name}_{feature_map}", inputs


def gated_call(
    x: Any, dt: Any, state: Any, *, A_log: Any, dt_bias: Any, D: Any = None,
    time_step_limit: Any = None, weight: Any = None, bias: Any = None,
    activation: Any = "silu", z: Any = None, norm_weight: Any = None, norm_eps: Any = 1e-5,
    norm_groups: Any = 1, scale: Any = 1.0,
) -> tuple[FusedCall, str, tuple[Any, ...]]:  # fmt: skip
    """A checked call of `fused_gated_step`, its gufunc, and the inputs of that."""
    call = FusedCall("fused_gated_step", state, {
        "x": (x, 1), "dt": (dt, 1), "weight": (weight, 2), "bias": (bias, 1), "z": (z, 1),
        "norm_weight": (norm_weight, 1),
    }, {"A_log": A_log, "dt_bias": dt_bias, "D": D})  # fmt: skip
    name, n, _, m = call.name, *call.core
    call.expect("dt", n)
    call.expect_alone("norm_weight", n * m)
    groups = _check.integer(name, "norm_groups", norm_groups)
    if n % groups:
        raise ValueError(f"{name}: norm_groups is {groups}; expected a divisor of {n}, the heads")
    least, most = call.limits(time_step_limit)
    own = np.zeros(0, call.wide) if D is None else call.expect_rate("D", (n,))
    inputs = (
        *call.convolution(), call.tokens["dt"], call.expect_rate("A_log", (n,)),
        call.expect_rate("dt_bias", (n,)), own, call.gate(), call.norm_weight(n),
        silu_number(name, activation), least, most, call.number("scale", scale),
        call.number("norm_eps", norm_eps), float(groups),
    )  # fmt: skip
    return call, name, inputs


class FusedCall:
    """The operands of a call, checked: tokens, which share a dtype, and rates of the state's."""

    def __init__(
        self, name: str, state: Any, tokens: dict[str, tuple[Any, int]], rates: dict[str, Any]
    ) -> None:
        self.name = name
        given = {
            key: y if _is_whole(y, axes) else np.asarray(_check.operand(name, key, y, axes))
            for key, (y, axes) in tokens.items()
            if y is not None
        }
        self.dtype: DType = result_dtype(*given.values())
        self.wide: DType = work_dtype(self.dtype)
        self.tokens = {key: _cast(y, self.dtype) for key, y in given.items()}
        self.rates = {
            key: y
            if _is_whole(y, 1) and y.dtype == self.wide
            else _cast(np.asarray(_check.operand(name, key, y, 1)), self.wide)
            for key, y in rates.items()
            if y is not None
        }
        self.state = conv, s = _fields(name, state)
        if not isinstance(s, np.ndarray):
            raise TypeError(f"{name}: state.s is a {type(s).__name__}; expected a NumPy array")
        if s.ndim < 3 or 0 in s.shape[-3:]:
            raise ValueError(
                f"{name}: state.s has shape {s.shape}; expected (..., n, d, m), each at least 1"
            )
        self.core: tuple[int, int, int] = s.shape[-3:]
        self._check_channels()
        self._check_convolution(conv)

    def _check_channels(self) -> None:
        n, d, m = self.core
        c = self.tokens["x"].shape[-1]
        keys, odd = divmod(c - n * m, 2 * d)
        if odd or keys < 1 or n % keys:
            raise ValueError(
                f"{self.name}: x has shape {self.tokens['x'].shape}; expected (..., 2 h d + n m), "
                f"n = {n}, d = {d} and m = {m} as in state.s, and h a divisor of n"
            )

    def _check_convolution(self, conv: Any) -> None:
        weight, c = self.tokens.get("weight"), self.tokens["x"].shape[-1]
        if weight is None:
            for key, y in (("bias", self.tokens.get("bias")), ("state.conv", conv)):
                if y is not None:
                    raise ValueError(
                        f"{self.name}: {key} is given without weight; expected None, or both"
                    )
            return
        if weight.ndim != 2 or weight.shape[0] != c or weight.shape[1] < 1:
            raise ValueError(
                f"{self.name}: weight has shape {weight.shape}; expected ({c}, w), w >= 1"
            )
        self.expect_alone("bias", c)
        if conv is None:
            raise ValueError(
                f"{self.name}: state.conv is None and weight is given; expected an array of shape "
                f"(..., {c}, {weight.shape[1] - 1})"
            )

    def ndim(self, key: str) -> int:
        return self.tokens[key].ndim

    def expect(self, key: str, *core: int) -> None:
        """Check the last axes of a token's operand."""
        shape = self.tokens[key].shape
        if shape[-len(core) :] != core:
            raise ValueError(
                f"{self.name}: {key} has shape {shape}; expected (..., {', '.join(map(str, core))})"
            )

    def expect_alone(self, key: str, size: int) -> None:
        """Check an operand of one axis."""
        y = self.tokens.get(key)
        if y is not None and y.shape != (size,):
            raise ValueError(f"{self.name}: {key} has shape {y.shape}; expected ({size},)")

    def expect_rate(self, key: str, *shapes: Shape) -> Array:
        y = self.rates[key]
        if y.shape not in shapes:
            expected = " or ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"{self.name}: {key} has shape {y.shape}; expected {expected}")
        return y

    def number(self, key: str, x: Any) -> float:
        if type(x) is float and -_USUAL < x < _USUAL:
            return x
        return _check.number(self.name, key, x, self.tokens["x"])

    def limits(self, x: Any) -> tuple[float, float]:
        """``time_step_limit`` as finite numbers."""
        if x is None:
            return 0.0, _USUAL
        try:
            least, most = (_check.real(self.name, "time_step_limit", y) for y in x)
        except (TypeError, ValueError):
            raise TypeError(
                f"{self.name}: time_step_limit is {x!r}; expected two numbers"
            ) from None
        largest = float(np.finfo(self.wide).max)
        if not least <= most:
            raise ValueError(
                f"{self.name}: time_step_limit is {x!r}; expected the least time step first"
            )
        return max(-largest, min(least, largest)), max(-largest, min(most, largest))

    def convolution(self) -> tuple[Array, Array, Array]:
        """x, the filters by tap, and the bias; empty ones if there are none."""
        x, weight, bias = (self.tokens.get(key) for key in ("x", "weight", "bias"))
        assert x is not None
        taps = np.zeros((0, x.shape[-1]), self.dtype) if weight is None else weight.T
        return x, taps, np.zeros(0, self.dtype) if bias is None else bias

    def gate(self) -> Array:
        """z by heads."""
        n, _, m = self.core
        z = self.tokens.get("z")
        if z is None:
            return np.zeros((n, 0), self.dtype)
        self.expect("z", n * m)
        return z.reshape(*z.shape[:-1], n, m)

    def norm_weight(self, *heads: int) -> Array:
        y = self.tokens.get("norm_weight")
        if y is None:
            return np.zeros((*heads, 0), self.dtype)
        return y.reshape(*heads, -1) if heads else y

    def _lead(self) -> Shape:
        """The leading axes of the result."""
        shape: Shape = ()
        for key in ("x", "a", "b", "dt", "z"):
            y = self.tokens.get(key)
            if y is not None:
                core = 2 if key == "a" and y.ndim > self.ndim("b") else 1
                lead = y.shape[: y.ndim - core]
                if lead != shape:
                    shape = self._broadcast(key, lead, shape)
        return shape

    def _broadcast(self, key: str, lead: Shape, shape: Shape) -> Shape:
        try:
            return np.broadcast_shapes(lead, shape)
        except ValueError:
            raise ValueError(
                f"{self.name}: {key} has shape {self.tokens[key].shape}; expected leading axes "
                f"that broadcast with {shape}"
            ) from None

    def check_state(self, in_place: Any) -> Shape:
        """Check the state, and return the leading axes of the result."""
        lead, (conv, s) = self._lead(), self.state
        _state.checked_field(self.name, "state.s", s, lead, self.core, self.wide)
        if conv is not None:
            c, least = self.tokens["x"].shape[-1], self.tokens["weight"].shape[-1] - 1
            columns = conv.shape[-1] if isinstance(conv, np.ndarray) and conv.ndim else 0
            core = c, max(least, columns)
            _state.checked_field(self.name, "state.conv", conv, lead, core, self.wide)
        if in_place:
            _state.updated(self.name, "state.s", s, lead, 3)
            if conv is not None:
                _state.updated(self.name, "state.conv", conv, lead, 2)
        return lead

    def run(self, gufunc: str, inputs: tuple[Any, ...], in_place: Any) -> tuple[Array, FusedState]:
        lead, (conv, s), (n, _, m) = self.check_state(in_place), self.state, self.core
        # By tap, as kernels read it fastest.
        before = np.zeros((0, self.tokens["x"].shape[-1]), self.wide)
        before = before if conv is None else conv.swapaxes(-1, -2)
        o = np.empty((*lead, n, m), self.dtype)
        if in_place:
            after = np.zeros((*lead, *before.shape), self.wide) if conv is None else before
            run(internal_ufuncs[f"_{gufunc}"], inputs, (o, s, after))
            return o.reshape(*lead, n * m), FusedState(conv, s)
        _, s, after = run(internal_ufuncs[gufunc], (*inputs, s, before), (o, None, None))
        conv = None if conv is None else after.swapaxes(-1, -2)
        return o.reshape(*lead, n * m), FusedState(conv, s)


def _is_whole(x: Any, axes: int) -> bool:
    """Whether x is an array that needs no check by itself."""
    return type(x) is np.ndarray and x.dtype in FAST and x.ndim >= axes


def _cast(x: Array, dtype: DType) -> Array:
    return x if x.dtype == dtype else x.astype(dtype)


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
