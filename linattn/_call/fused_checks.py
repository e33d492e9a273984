"""Checks of the operands of the fused steps, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core import checks
from .._core.dtypes import result_dtype, work_dtype
from .._states import state_arrays

if TYPE_CHECKING:
    from .._types import Array, DType, Shape

_USUAL = 1e38  #: numbers below are finite in every dtype
_OPTIONAL = frozenset(("weight", "bias", "z", "norm_weight", "D"))


class Plan(NamedTuple):
    """What follows from the shapes, dtypes and options of a call: they are checked once."""

    name: str
    gufunc: str
    core: Shape  #: n, d, m
    lead: Shape  #: the leading axes of the result
    dtype: DType
    wide: DType
    columns: int  #: of the convolution's state
    numbers: tuple[float, ...]
    by_channel: bool = False


class Checks:
    """The operands of a call: tokens, which share a dtype, and rates of the state's."""

    def __init__(
        self, name: str, tokens: dict[str, Any], rates: dict[str, Any], conv: Any, s: Any
    ) -> None:
        self.name, self.conv, self.s = name, conv, s
        given = {
            key: np.asarray(checks.operand(name, key, y, 2 if key == "weight" else 1))
            for key, y in tokens.items()
            if y is not None or key not in _OPTIONAL
        }
        self.dtype: DType = result_dtype(*given.values())
        self.wide: DType = work_dtype(self.dtype)
        self.tokens = {key: _cast(y, self.dtype) for key, y in given.items()}
        self.rates = {
            key: _cast(np.asarray(checks.operand(name, key, y, 1)), self.wide)
            for key, y in rates.items()
            if y is not None or key not in _OPTIONAL
        }
        if not isinstance(s, np.ndarray):
            raise TypeError(f"{name}: state.s is a {type(s).__name__}; expected a NumPy array")
        if s.ndim < 3 or 0 in s.shape[-3:]:
            raise ValueError(
                f"{name}: state.s has shape {s.shape}; expected (..., n, d, m), each at least 1"
            )
        self.core: Shape = s.shape[-3:]
        self.columns = 0
        self._check_channels()
        self._check_convolution(conv)

    def plan(self, gufunc: str, numbers: tuple[float, ...], by_channel: bool = False) -> Plan:
        n, _, m = self.core
        self.expect_rate("A_log", (n,))
        if "z" in self.tokens:
            self.expect("z", n * m)
        return Plan(
            self.name, gufunc, self.core, self._lead(), self.dtype, self.wide, self.columns,
            numbers, by_channel,
        )  # fmt: skip

    def every(self, given: dict[str, Any]) -> dict[str, Any]:
        """The operands in the call's dtypes, None for those left out."""
        arrays = self.tokens if "x" in given else self.rates
        return {key: arrays.get(key) for key in given}

    def keep_their_dtypes(self, tokens: dict[str, Any]) -> bool:
        return all([y is None or y.dtype == self.dtype for y in tokens.values()])

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
        given = conv.shape[-1] if isinstance(conv, np.ndarray) and conv.ndim else 0
        self.columns = max(given, weight.shape[1] - 1)

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

    def expect_rate(self, key: str, *shapes: Shape) -> None:
        y = self.rates[key]
        if y.shape not in shapes:
            expected = " or ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"{self.name}: {key} has shape {y.shape}; expected {expected}")

    def number(self, key: str, x: Any) -> float:
        if type(x) is float and -_USUAL < x < _USUAL:
            return x
        return checks.number(self.name, key, x, self.tokens["x"])

    def positive(self, key: str, x: Any) -> float:
        """A number of at least 0."""
        return checks.positive(self.name, key, x, self.tokens["x"], zero=True)

    def limits(self, x: Any) -> tuple[float, float]:
        """``time_step_limit`` as finite numbers."""
        if x is None:
            return 0.0, _USUAL
        try:
            least, most = (checks.real(self.name, "time_step_limit", y) for y in x)
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

    def _lead(self) -> Shape:
        """The leading axes of the result."""
        shape: Shape = ()
        for key in ("x", "a", "b", "dt", "z"):
            y = self.tokens.get(key)
            if y is not None:
                core = 2 if key == "a" and y.ndim > self.tokens["b"].ndim else 1
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

    def check_state(self, lead: Shape) -> None:
        state_arrays.checked_field(self.name, "state.s", self.s, lead, self.core, self.wide)
        if self.conv is not None:
            core = self.tokens["x"].shape[-1], self.columns
            state_arrays.checked_field(self.name, "state.conv", self.conv, lead, core, self.wide)


def _cast(x: Array, dtype: DType) -> Array:
    return x if x.dtype == dtype else x.astype(dtype)
