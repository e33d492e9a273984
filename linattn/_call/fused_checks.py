"""Checks of the operands of the fused steps, from their rows in operators.def."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core import checks
from .._core.dtypes import result_dtype, work_dtype
from .._core.layout import Operand
from .._linattn import operators
from .._states import state_arrays
from .tables import MAPS

if TYPE_CHECKING:
    from .._types import Array, DType, Shape

_USUAL = 1e38  #: numbers below are finite in every dtype
_PUBLIC = {"beta": "b", "gate": "z"}  #: operands that are called otherwise in the table
#: Operands that have leading axes; the others are parameters of the layer.
_TOKENS = frozenset(("x", "a", "b", "dt", "z"))
#: Operands with one axis for the heads and their columns.
_FLAT = frozenset(("z", "norm_weight"))


class Row:
    """A fused step as the table has it."""

    def __init__(self, name: str) -> None:
        row = operators[name]
        self.half_states = row["half_states"]
        self.name, self.maps, self.numbers = name, row["maps"], row["numbers"]
        rows = (Operand(*x) for x in row["inputs"])
        self.operands = tuple(x._replace(name=_PUBLIC.get(x.name, x.name)) for x in rows)
        options = dict.fromkeys(_OPTIONS[x] for x in self.numbers)
        self.options = (*options, *("feature_map",) * self.maps)

    def gufunc(self, given: Mapping[str, Any], by_channel: bool, feature_map: str) -> str:
        """The name of the gufunc that takes these operands."""
        suffixes = [
            x.suffix
            for x in self.operands
            if (given[x.name] is not None if x.optional else x.channels and by_channel)
        ]
        ends = "".join(dict.fromkeys(suffixes)), f"_{feature_map}" if self.maps else ""
        return f"{self.name.removesuffix('_step')}{ends[0]}_step{ends[1]}"


class Plan(NamedTuple):
    """What follows from the shapes, dtypes and options of a call: they are checked once."""

    name: str
    gufunc: str
    cores: dict[str, Shape]  #: s (n, d, m) and, with a convolution, conv (c, columns)
    lead: Shape  #: the leading axes of the result
    dtype: DType
    wide: DType
    half_states: bool  #: whether states may have 16 bits
    numbers: tuple[float, ...]
    #: What makes of each operand what the gufunc takes; None for nothing.
    forms: tuple[Callable[[Array], Array] | None, ...]


class Checks:
    """The operands and options of a call."""

    def __init__(self, row: Row, given: Mapping[str, Any], conv: Any, s: Any) -> None:
        self.row, self.name, self.options = row, row.name, given
        self.conv, self.s, self.columns = conv, s, 0
        self.arrays: dict[str, Array] = {
            x.name: np.asarray(checks.operand(self.name, x.name, given[x.name], _axes(x)))
            for x in row.operands
            if given[x.name] is not None or not x.optional
        }
        rates = {x.name for x in row.operands if x.state_dtype}
        tokens = (y for name, y in self.arrays.items() if name not in rates)
        self.dtype: DType = result_dtype(*tokens)
        self.wide: DType = work_dtype(self.dtype)
        checks.plain_array(self.name, "state.s", s)
        if s.ndim < 3 or 0 in s.shape[-3:]:
            raise checks.wrong_shape(self.name, "state.s", s, "(..., n, d, m), each at least 1")
        self.sizes = dict(zip("ndm", s.shape[-3:], strict=True))
        self.sizes["c"] = self.arrays["x"].shape[-1]
        self.by_channel = "a" in self.arrays and self.arrays["a"].ndim > self.arrays["b"].ndim
        self._check_channels()
        self._check_convolution()
        for x in row.operands:
            if x.name in self.arrays:
                self._check_shape(x)

    def plan(self, *, pooled: bool) -> Plan:
        """The plan of the call, whose state is checked unless it is a pool."""
        feature_map = self._feature_map() if self.row.maps else ""
        numbers = tuple([_NUMBERS[x](self) for x in self.row.numbers])
        given = {x.name: self.arrays.get(x.name) for x in self.row.operands}
        gufunc = self.row.gufunc(given, self.by_channel, feature_map)
        cores, lead = {"s": self.s.shape[-3:]}, self._lead()
        if self.conv is not None:
            cores["conv"] = self.sizes["c"], self.columns
        for (field, core), x in zip(cores.items(), (self.s, self.conv), strict=False):
            if not pooled:
                name = f"state.{field}"
                state_arrays.checked_field(
                    self.name, name, x, lead, core, self.wide, halves=self.row.half_states
                )
        forms = tuple([self._form(x) for x in self.row.operands])
        return Plan(
            self.name, gufunc, cores, lead, self.dtype, self.wide, self.row.half_states, numbers,
            forms,
        )  # fmt: skip

    def number(self, option: str) -> float:
        x = self.options[option]
        if type(x) is float and -_USUAL < x < _USUAL:
            return x
        return checks.number(self.name, option, x, self.arrays["x"].astype(self.dtype))

    def positive(self, option: str) -> float:
        """A number of at least 0."""
        like = self.arrays["x"].astype(self.dtype)
        return checks.positive(self.name, option, self.options[option], like, zero=True)

    def limits(self) -> tuple[float, float]:
        """``time_step_limit`` as finite numbers."""
        x = self.options["time_step_limit"]
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

    def groups(self) -> float:
        groups = checks.integer(self.name, "norm_groups", self.options["norm_groups"])
        if (n := self.sizes["n"]) % groups:
            raise ValueError(
                f"{self.name}: norm_groups is {groups}; expected a divisor of {n}, the heads"
            )
        return float(groups)

    def by_sigmoid(self) -> float:
        """``norm_activation`` as the kernel takes it."""
        x = self.options["norm_activation"]
        if isinstance(x, str) and x in ("silu", "sigmoid"):
            return float(x == "sigmoid")
        error = ValueError if isinstance(x, str) else TypeError
        raise error(f"{self.name}: norm_activation is {x!r}; expected 'silu' or 'sigmoid'")

    # --- their parts -----------------------------------------------------------

    def _feature_map(self) -> str:
        x = self.options["feature_map"]
        if isinstance(x, str) and x in MAPS:
            return x
        error = ValueError if isinstance(x, str) else TypeError
        raise error(f"{self.name}: feature_map is {x!r}; expected one of {', '.join(MAPS)}")

    def _check_channels(self) -> None:
        n, d, m = self.s.shape[-3:]
        keys, odd = divmod(self.sizes["c"] - n * m, 2 * d)
        if odd or keys < 1 or n % keys:
            raise ValueError(
                f"{self.name}: x has shape {self.arrays['x'].shape}; expected (..., 2 h d + n m), "
                f"n = {n}, d = {d} and m = {m} as in state.s, and h a divisor of n"
            )

    def _check_convolution(self) -> None:
        weight, conv, c = self.arrays.get("weight"), self.conv, self.sizes["c"]
        if weight is None:
            for key, y in (("bias", self.arrays.get("bias")), ("state.conv", conv)):
                if y is not None:
                    raise ValueError(
                        f"{self.name}: {key} is given without weight; expected None, or both"
                    )
            return
        if weight.ndim != 2 or weight.shape[0] != c or weight.shape[1] < 1:
            raise checks.wrong_shape(self.name, "weight", weight, f"({c}, w), w >= 1")
        self.sizes["t"] = weight.shape[1]
        if conv is None:
            raise ValueError(
                f"{self.name}: state.conv is None and weight is given; expected an array of shape "
                f"(..., {c}, {weight.shape[1] - 1})"
            )
        given = conv.shape[-1] if isinstance(conv, np.ndarray) and conv.ndim else 0
        self.columns = max(given, weight.shape[1] - 1)

    def _check_shape(self, x: Operand) -> None:
        """Check the axes of an operand; those of a token may follow others."""
        shape, leads = self.arrays[x.name].shape, x.name in _TOKENS
        own: Shape = tuple(self.sizes[letter] for letter in x.dims)
        expected = [(prod(own),) if x.name in _FLAT else own]
        if x.channels and self.by_channel:
            full = (*own, self.sizes[x.channels])
            expected = [full] if leads else [own, full]
        if (shape[-len(expected[0]) :] if leads else shape) in expected:
            return
        shapes = [f"(..., {', '.join(map(str, y))})" if leads else str(y) for y in expected]
        why = ", as it has more axes than b" if x.name == "a" and self.by_channel else ""
        raise ValueError(
            f"{self.name}: {x.name} has shape {shape}; expected {' or '.join(shapes)}{why}"
        )

    def _form(self, x: Operand) -> Callable[[Array], Array] | None:
        y, kind = self.arrays.get(x.name), self.wide if x.state_dtype else self.dtype
        n, d, m = self.s.shape[-3:]
        if y is None:
            return None
        if x.dims == "nm":
            shape = *y.shape[:-1], n, m
            return lambda y: y.astype(kind, copy=False).reshape(shape)
        if x.channels and self.by_channel and y.ndim == 1:
            return lambda y: np.broadcast_to(y.astype(kind, copy=False)[:, None], (n, d))
        return None if y.dtype == kind else lambda y: y.astype(kind)

    def _lead(self) -> Shape:
        """The leading axes of the result."""
        shape: Shape = ()
        for key, y in self.arrays.items():
            if key in _TOKENS:
                core = 2 if key == "a" and self.by_channel else 1
                try:
                    shape = np.broadcast_shapes(y.shape[: y.ndim - core], shape)
                except ValueError:
                    raise checks.wrong_shape(
                        self.name, key, y, f"leading axes that broadcast with {shape}"
                    ) from None
        return shape


def _axes(x: Operand) -> int:
    """The least number of axes of an operand."""
    return 1 if x.name in _FLAT else len(x.dims)


#: The option that a number of the table follows from.
_OPTIONS = {
    "silu": "activation", "bounded": "lower_bound", "lower_bound": "lower_bound",
    "beta_scale": "beta_scale", "scale": "scale", "eps": "norm_eps",
    "by_sigmoid": "norm_activation", "least": "time_step_limit", "most": "time_step_limit",
    "groups": "norm_groups",
}  # fmt: skip
_NUMBERS: dict[str, Callable[[Checks], float]] = {
    "silu": lambda call: checks.silu(call.name, call.options["activation"]),
    "bounded": lambda call: float(call.options["lower_bound"] is not None),
    "lower_bound": lambda call: (
        0.0 if call.options["lower_bound"] is None else call.number("lower_bound")
    ),
    "beta_scale": lambda call: call.number("beta_scale"),
    "scale": lambda call: call.number("scale"),
    "eps": lambda call: call.positive("norm_eps"),
    "by_sigmoid": Checks.by_sigmoid,
    "least": lambda call: call.limits()[0],
    "most": lambda call: call.limits()[1],
    "groups": Checks.groups,
}
