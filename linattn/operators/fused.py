"""One token of a gated layer between its projections: convolution, gates, step and norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .._call.fused import Fused, FusedState
from .._docs.templates import filled, filled_like

if TYPE_CHECKING:
    from .._types import Activation, Array, ArrayLike, Map

GATED_DELTA, GATED = Fused("fused_gated_delta_step"), Fused("fused_gated_step")


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
    state_indices: ArrayLike | None = None,
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
        Raw gates, one per head or, as in Kimi Linear, one per key channel if ``a`` has more axes
        than ``b``.
    b : array_like, shape (..., n)
        Raw write strengths.
    state : FusedState
        The state before the token, of the dtype of the result, or float32 if that has 16 bits.
        ``state.conv`` (..., c, w - 1) may have more columns before these; the call shifts them all.
        Its fields may differ in dtype.
    $half_state
    A_log : array_like, shape (n,)
        The logarithm of the rate of each head.
    dt_bias : array_like, shape (n,) or (n, d)
        Added to a.
    lower_bound : float, optional
        As in `log_decay`.
    beta_scale : float, default 1.0
        Multiplies sigmoid(b); with 2 the memory's eigenvalues may be negative.
    weight : array_like, shape (c, w), optional
        The filters of the convolution.  Without them there is no convolution, and ``state.conv``
        is None.
    bias : array_like, shape (c,), optional
        The bias of the convolution.
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
        If shapes do not match, an option is out of range or unknown, ``in_place`` is True and
        the state is read-only, lacks leading axes, or overlaps itself, or ``state_indices`` is
        out of range or has a row twice.
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
    return GATED_DELTA.step(
        state, in_place, state_indices, x=x, a=a, b=b, A_log=A_log, dt_bias=dt_bias,
        lower_bound=lower_bound, beta_scale=beta_scale, weight=weight, bias=bias,
        activation=activation, z=z, norm_weight=norm_weight, norm_eps=norm_eps,
        norm_activation=norm_activation, feature_map=feature_map, scale=scale,
    )  # fmt: skip


@filled_like(fused_gated_delta_step)
def fused_gated_step(
    x: ArrayLike,
    dt: ArrayLike,
    state: FusedState,
    *,
    A_log: ArrayLike,
    dt_bias: ArrayLike,
    D: ArrayLike | None = None,
    time_step_limit: tuple[float, float] | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: Activation = "silu",
    z: ArrayLike | None = None,
    norm_weight: ArrayLike | None = None,
    norm_eps: float = 1e-5,
    norm_groups: int = 1,
    scale: float = 1.0,
    in_place: bool = False,
    state_indices: ArrayLike | None = None,
) -> tuple[Array, FusedState]:
    """One token of a Mamba-2 layer, between its projections.

    In one call: `causal_conv1d_step`, with silu, gives ``[v | k | q]``, in Mamba-2 named x, B and
    C; ``t = softplus(dt + dt_bias)``, within the limits; `gated_step`, of q, k, ``t v``
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
    time_step_limit : tuple of two floats, optional
        The least and the largest time step; no limits by default.
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
    return GATED.step(
        state, in_place, state_indices, x=x, dt=dt, A_log=A_log, dt_bias=dt_bias, D=D,
        time_step_limit=time_step_limit, weight=weight, bias=bias, activation=activation, z=z,
        norm_weight=norm_weight, norm_eps=norm_eps, norm_groups=norm_groups, scale=scale,
    )  # fmt: skip
