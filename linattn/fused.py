"""One token of a gated layer between its projections: convolution, gates, step and norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from . import _check, _state
from ._docs import filled, filled_like
from ._dtypes import result_dtype, work_dtype
from ._gufuncs import internal_ufuncs, run
from ._operator import MAPS
from .conv import _silu

if TYPE_CHECKING:
    from ._types import Activation, Array, ArrayLike, DType, Map, Shape


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


@filled
def fused_gated_delta_step(
    x: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    state: FusedState,
    *,
    A_log: ArrayLike,
    dt_bias: ArrayLike,
    lower_bound: float | None = None,
    beta_scale: float = 1.0,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: Activation = "silu",
    z: ArrayLike | None = None,
    norm_weight: ArrayLike | None = None,
    norm_eps: float = 1e-6,
    norm_activation: Literal["silu", "sigmoid"] = "silu",
    feature_map: Map = "l2norm",
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Array, FusedState]:
    """One token of a Gated DeltaNet or Kimi Delta Attention layer, between its projections.

    In one call, what these functions compute: `causal_conv1d_step`, with silu, gives ``[q | k |
    v]``; ``g = log_decay(a, A_log, dt_bias)`` and ``beta = beta_scale sigmoid(b)``;
    `gated_delta_step` gives o; and ``o / sqrt(mean(o^2) + norm_eps) norm_weight silu(z)``, with
    the mean over each head.

    There are h heads of queries and keys of width d, and n heads of values of width m, n a
    multiple of h.  The shapes say which: n, d and m are those of ``state.s``.

    Parameters
    ----------
    x : array_like, shape (..., c)
        Queries, keys and values of all heads, ``[q | k | v]``, c = 2 h d + n m.  float16,
        bfloat16, float32 or float64; other real dtypes are cast by {library}'s rules.  16-bit
        operands are computed in float32 and rounded once, at the end.
    a : array_like, shape (..., n) or (..., n, d)
        Raw gates, one per head or, as in Kimi Linear, one per key channel.
    b : array_like, shape (..., n)
        Raw write strengths.
    state : FusedState
        The state before the token, of the dtype of the result, or float32 if that has 16 bits.
        ``state.conv`` (..., c, w - 1) may have more columns, before these, which the call moves
        along.
    A_log : array_like, shape (n,)
        The logarithm of the rate of each head.
    dt_bias : array_like, shape (n,) or (n, d)
        Added to a.
    lower_bound : float, optional
        As in `log_decay`.
    beta_scale : float, default 1.0
        Multiplies sigmoid(b); with 2 the memory's eigenvalues may be negative.
    weight : array_like, shape (c, w), optional
        The filters of the convolution.  Without them x is taken as it is, and ``state.conv`` is
        None.
    bias : array_like, shape (c,), optional
        Of the convolution.
    activation : {None, 'silu'}, default 'silu'
        Applied after the convolution.
    z : array_like, shape (..., n m), optional
        The gates of the output.
    norm_weight : array_like, shape (m,), optional
        The weights of the root mean square norm of each head; without them there is no norm.
    norm_eps : float, default 1e-6
        Added to the mean square.
    norm_activation : {'silu', 'sigmoid'}, default 'silu'
        The function of z that multiplies the output.
    feature_map : {'l2norm', 'identity', 'relu', 'elu', 'softplus', 'exp'}, default 'l2norm'
        phi, applied to each query and key after the convolution.
    in_place : bool, default False
        Write the new state to ``state`` and return it.

    Returns
    -------
    o : ndarray, shape (..., n m)
    state : FusedState
        The state after the token.

    Raises
    ------
    TypeError
        If an operand is {refused}, an option has the wrong type, or ``state`` is not a FusedState
        or has the wrong dtype.
    ValueError
        If shapes do not match, an option is out of range or unknown, or ``in_place`` is True and
        the state is read-only, lacks leading axes, or overlaps itself.
    MemoryError
        If there is not enough memory for the result or the scratch.

    Notes
    -----
    7 n d m floating-point operations, 2 w c for the convolution, and about 25 for each number
    whose exponential is needed.  The state is read and written once.

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
    2025, section 3.4; Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture",
    2025

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.FusedState(None, np.zeros((1, 2, 3)))
    >>> x = np.array([3.0, 4.0, 3.0, 4.0, 1.0, 2.0, 3.0])  # q and k of 2, v of 3
    >>> o, state = linattn.fused_gated_delta_step(
    ...     x, np.zeros(1), np.zeros(1), state, A_log=np.zeros(1), dt_bias=np.zeros(1)
    ... )
    >>> o.round(3)
    array([0.5, 1. , 1.5])
    """
    call = _Call("fused_gated_delta_step", state, {
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
        call.gate(), call.norm_weight(), _silu(name, activation), float(lower_bound is not None),
        bound, call.number("beta_scale", beta_scale), call.number("scale", scale),
        call.number("norm_eps", norm_eps), _by_sigmoid(name, norm_activation),
    )  # fmt: skip
    return call.run(f"{name}_{feature_map}", inputs, in_place)


@filled_like(fused_gated_delta_step)
def fused_gated_step(
    x: ArrayLike,
    dt: ArrayLike,
    state: FusedState,
    *,
    A_log: ArrayLike,
    dt_bias: ArrayLike,
    D: ArrayLike | None = None,
    time_step_limit: tuple[float, float] = (0.0, math.inf),
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: Activation = "silu",
    z: ArrayLike | None = None,
    norm_weight: ArrayLike | None = None,
    norm_eps: float = 1e-5,
    norm_groups: int = 1,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Array, FusedState]:
    """One token of a Mamba-2 layer, between its projections.

    In one call: `causal_conv1d_step`, with silu, gives ``[v | k | q]``, in Mamba-2 named x, B and
    C; ``t = softplus(dt + dt_bias)``, within ``time_step_limit``; `gated_step`, of q, k, ``t v``
    and ``g = -exp(A_log) t``, gives o; then ``o <- (o + D v) silu(z)``; and
    ``o / sqrt(mean(o^2) + norm_eps) norm_weight``, with the mean over each group of heads.

    There are h heads of queries and keys of width d, and n heads of values of width m, n a
    multiple of h.  The shapes say which: n, d and m are those of ``state.s``.

    Parameters
    ----------
    x : array_like, shape (..., c)
        Values, keys and queries of all heads, ``[v | k | q]``, c = n m + 2 h d.  float16,
        bfloat16, float32 or float64; other real dtypes are cast by {library}'s rules.  16-bit
        operands are computed in float32 and rounded once, at the end.
    dt : array_like, shape (..., n)
        Raw time steps.
    dt_bias : array_like, shape (n,)
        Added to dt.
    D : array_like, shape (n,), optional
        The weight of a token's own value in the output of its head.
    time_step_limit : tuple of two floats, default (0.0, inf)
        The least and the largest time step.
    norm_weight : array_like, shape (n m,), optional
        The weights of the root mean square norm; without them there is no norm.
    norm_eps : float, default 1e-5
        Added to the mean square.
    norm_groups : int, default 1
        The number of groups of heads that are normalised separately, a divisor of n.

    Returns
    -------
    o : ndarray, shape (..., n m)
    state : FusedState
        The state after the token.

    Notes
    -----
    4 n d m floating-point operations, 2 w c for the convolution, and about 25 for each number
    whose exponential is needed.  The state is read and written once.

    References
    ----------
    Dao and Gu, "Transformers are SSMs", ICML 2024, section 7

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.FusedState(None, np.ones((1, 2, 3)))
    >>> x = np.array([1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 1.0])  # v of 3, k and q of 2
    >>> o, state = linattn.fused_gated_step(
    ...     x, np.zeros(1), state, A_log=np.zeros(1), dt_bias=np.zeros(1)
    ... )
    >>> o, state.s[0, 0].round(3)
    (array([0.5, 0.5, 0.5]), array([1.193, 1.886, 2.579]))
    """
    call = _Call("fused_gated_step", state, {
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
        _silu(name, activation), least, most, call.number("scale", scale),
        call.number("norm_eps", norm_eps), float(groups),
    )  # fmt: skip
    return call.run(name, inputs, in_place)


class _Call:
    """The operands of a call, checked: tokens, which share a dtype, and rates of the state's."""

    def __init__(
        self, name: str, state: Any, tokens: dict[str, tuple[Any, int]], rates: dict[str, Any]
    ) -> None:
        self.name = name
        given = {
            key: np.asarray(_check.operand(name, key, y, axes))
            for key, (y, axes) in tokens.items()
            if y is not None
        }
        self.dtype: DType = result_dtype(*given.values())
        self.wide: DType = work_dtype(self.dtype)
        self.tokens = {key: _cast(y, self.dtype) for key, y in given.items()}
        self.rates = {
            key: _cast(np.asarray(_check.operand(name, key, y, 1)), self.wide)
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
        return _check.number(self.name, key, x, self.tokens["x"])

    def limits(self, x: Any) -> tuple[float, float]:
        """``time_step_limit`` as finite numbers."""
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

    def run(self, gufunc: str, inputs: tuple[Any, ...], in_place: Any) -> Any:
        lead, (n, d, m) = self._lead(), self.core
        conv, s = self.state
        _state.checked_field(self.name, "state.s", s, lead, self.core, self.wide)
        taps = None
        if conv is not None:
            x, weight = self.tokens["x"], self.tokens["weight"]
            core = (x.shape[-1], weight.shape[-1] - 1)
            if isinstance(conv, np.ndarray) and conv.ndim > 1 and conv.shape[-1] > core[1]:
                core = core[0], conv.shape[-1]
            _state.checked_field(self.name, "state.conv", conv, lead, core, self.wide)
        o = np.empty((*lead, n, m), self.dtype)
        if in_place:
            self._check_updated(conv, s, lead)
            new = self.state
        else:
            new = (
                None if conv is None else np.empty((*lead, *core), self.wide),
                np.empty((*lead, n, d, m), self.wide),
            )
        none = np.zeros((*lead, 0, self.tokens["x"].shape[-1]), self.wide)
        before, after = (none if y is None else y.swapaxes(-1, -2) for y in (conv, new[0]))
        if in_place:
            run(internal_ufuncs[f"_{gufunc}"], inputs, (o, s, after))
        else:
            run(internal_ufuncs[gufunc], (*inputs, s, before), (o, new[1], after))
        return o.reshape(*lead, n * m), FusedState(*new)

    def _check_updated(self, conv: Any, s: Any, lead: Shape) -> None:
        _state.updated(self.name, "state.s", s, lead, 3)
        if conv is not None:
            _state.updated(self.name, "state.conv", conv, lead, 2)


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
