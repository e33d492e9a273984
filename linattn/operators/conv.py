"""The short causal convolution of gated models: forward, gradients and one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._call import pools
from .._call.interface import Interface
from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype, state_dtype
from .._core.gufuncs import quiet, run, ufuncs
from .._core.layout import Layout, Operand
from .._core.lazy import in_one_chunk
from .._docs.templates import filled, filled_like
from .._linattn import pool_call
from .._states import state_arrays
from .._states.state_arrays import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.layout import Call
    from .._types import Activation, Array, ArrayLike

#: The longest filters that the kernel of a step reads where they lie (conv_step.h).
_STEP_TAPS = 4
#: Filters are (c, w) here and (w, c) in the gufuncs, where every step of a loop reads one tap.
LAYOUT = Layout(
    [Operand("x", "nc"), Operand("weight", "cw"), Operand("bias", "c", optional=True)],
    output="nc", state="cw",
)  # fmt: skip


@quiet
@filled
def causal_conv1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: Array | None = None,
    state_indices: ArrayLike | None = None,
    return_state: bool = False,
    state_at: ArrayLike | None = None,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Causal convolution of each channel with its own short filter.

    ``o_t = bias + sum_{j=0}^{w-1} weight[:, w-1-j] x_{t-j}``, then the activation: the last
    weight multiplies the current token.  Inputs before the first token are 0, or those of
    ``initial_state``.  A token at position t never affects an output before t.

    Parameters
    ----------
    x : array_like, shape (..., n, c)
        Tokens, float16, bfloat16, float32 or float64.  Other real dtypes are cast by {library}'s
        rules.  16-bit operands are computed in float32 and rounded once.
    weight : array_like, shape (c, w)
        The filter of each channel, w >= 1.  Leading axes, if any, broadcast with those of x.
    bias : array_like, shape (c,), optional
        Added to each channel.
    activation : {None, 'silu'}, default None
        ``silu(p) = p / (1 + exp(-p))`` of the sum.
    initial_state : ndarray, shape (..., c, w - 1), optional
        The inputs before the first token, oldest first, or (..., r, c, w - 1) with
        ``cu_seqlens``, of the result's dtype, or float32 if that has 16 bits.  Zeros by default.
    return_state : bool, default False
        Also return the last w - 1 inputs.
    out : ndarray, shape (..., n, c), optional
        Where to write the result; of the result's dtype.  It may overlap an operand.

    Returns
    -------
    o : ndarray, shape (..., n, c)
    state : ndarray, shape (..., c, w - 1)
        Only with ``return_state``; (..., r, c, w - 1) with ``cu_seqlens``.  You can cut a sequence
        anywhere and continue from it.

    Raises
    ------
    $raises_of_convolutions

    Notes
    -----
    2 w n c floating-point operations, and about 25 per number for silu; one pass over memory.
    Results of 16 MiB or more bypass the processor's cache.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    section 3.4

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.array([[1.0], [2.0], [4.0], [8.0]])
    >>> o, state = linattn.causal_conv1d(x, [[0.5, 1.0]], return_state=True)
    >>> o.ravel(), state
    (array([ 1. ,  2.5,  5. , 10. ]), array([[8.]]))
    """
    name = "causal_conv1d"
    if state_indices is not None or state_at is not None:
        return pools.call(
            CONVOLUTION, "forward", (x, weight, bias), activation=activation, cu_seqlens=cu_seqlens,
            initial_state=initial_state, return_state=return_state, out=out,
            state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
    x, taps, bias, shape, silu = _operands(name, x, weight, bias, activation)
    if out is not None:
        checks.out(name, out, shape, x, taps, bias)
    if cu_seqlens is None and initial_state is None and not return_state:
        return run(ufuncs[name], (x, taps, bias, silu), (out,))[0]
    packing = state_arrays.sequences(name, shape[-2], shape[:-2], cu_seqlens, None)
    dtype = state_dtype(x, taps, bias)
    start = _inputs(name, "initial_state", initial_state, packing, shape, taps, dtype, return_state)
    wanted: Any = None if return_state else ...
    inputs = x, taps, bias, silu, packing.begin, packing.end, start
    o, s = run(ufuncs[f"{name}_state"], inputs, (out, wanted))
    return (o, _result(packing, s)) if return_state else o


@quiet
@filled_like(causal_conv1d)
def causal_conv1d_backward(
    x: ArrayLike,
    weight: ArrayLike,
    grad_out: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: Array | None = None,
    state_indices: ArrayLike | None = None,
    grad_state: Array | None = None,
    state_at: ArrayLike | None = None,
) -> tuple[Array, ...]:
    """Gradients of `causal_conv1d`.

    They are exact for its equation and do not need the forward result.

    Parameters
    ----------
    grad_out : array_like, shape (..., n, c)
        The gradient of a scalar with respect to the output.  It may be an expanded
        (zero-stride) view.
    grad_state : ndarray, shape (..., c, w - 1), optional
        The gradient with respect to the final state, or (..., r, c, w - 1).

    Returns
    -------
    dx, dweight : ndarray
        Gradients, in the shapes of x and weight.  Those of a broadcast operand are summed over
        the axes it was broadcast along.
    dbias : ndarray
        Only if ``bias`` is given.
    dstate : ndarray
        The gradient of the initial state, in its shape.  Only if ``initial_state`` or
        ``grad_state`` is given.

    Notes
    -----
    6 w n c floating-point operations, and about 30 per number for silu.  Sums over tokens are
    compensated; sums over heads and sequences are in float64.  Memory beyond the arrays: w c
    numbers per head and sequence.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.array([[1.0], [2.0], [4.0], [8.0]])
    >>> dx, dweight = linattn.causal_conv1d_backward(x, [[0.5, 1.0]], np.ones((4, 1)))
    >>> dx.ravel(), dweight
    (array([1.5, 1.5, 1.5, 1. ]), array([[ 7., 15.]]))
    """
    name = "causal_conv1d_backward"
    if state_indices is not None or state_at is not None:
        cut: tuple[Array, ...] = pools.call(
            CONVOLUTION, "backward", (x, weight, bias), grad_out=grad_out,
            activation=activation, cu_seqlens=cu_seqlens, initial_state=initial_state,
            grad_state=grad_state, state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
        return cut
    tokens, taps, added, shape, silu = _operands(name, x, weight, bias, activation)
    grad_out = checks.cotangent(name, in_one_chunk(name, "grad_out", grad_out, 2), shape)
    operands = tokens, taps, added, grad_out
    dtype, wide = result_dtype(*operands), state_dtype(*operands)
    with_state = initial_state is not None or grad_state is not None
    dstate: tuple[np.ndarray, ...] = ()
    if cu_seqlens is None and not with_state:
        dx, dtaps, dbias = run(ufuncs[name], (*operands, silu), dtype=dtype)
    else:
        packing = state_arrays.sequences(name, shape[-2], shape[:-2], cu_seqlens, None)
        start, last = (
            _inputs(name, field, state, packing, shape, taps, wide, with_state)
            for field, state in (("initial_state", initial_state), ("grad_state", grad_state))
        )
        inputs = *operands, silu, packing.begin, packing.end, start, last
        wanted = None, None, None, None if with_state else ...
        gufunc = ufuncs["causal_conv1d_state_backward"]
        dx, dtaps, dbias, ds = run(gufunc, inputs, wanted, dtype)
        sequences = len(shape) - 2
        dtaps, dbias = (gradient_sums.over_axis(y, sequences) for y in (dtaps, dbias))
        if with_state:
            ds = gradient_sums.summed(ds, start.shape, wide) if initial_state is not None else ds
            dstate = (_result(packing, ds),)
    dx, dtaps, dbias = gradient_sums.sum_all(
        (dx, dtaps, dbias), (tokens, taps, added), (dtype,) * 3
    )
    dweight = np.ascontiguousarray(dtaps.swapaxes(-1, -2))
    return dx, dweight, *((dbias,) if bias is not None else ()), *dstate


@filled_like(causal_conv1d)
def causal_conv1d_step(
    x: ArrayLike,
    weight: ArrayLike,
    state: Array,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    in_place: bool = False,
    state_indices: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """One token of `causal_conv1d`.

    ``o = bias + sum_{k < w-1} weight[:, k] state[:, k] + weight[:, w-1] x``, then the
    activation.  The token becomes the last input of the state; the first one is dropped.

    Parameters
    ----------
    x : array_like, shape (..., c)
        The token.
    state : ndarray, shape (..., c, w - 1)
        The inputs before it, oldest first, of the result's dtype, or float32 if that has
        16 bits.
    in_place : bool, default False
        Write the new state to ``state`` and return it.  It must be writeable and have all
        leading axes.

    Returns
    -------
    o : ndarray, shape (..., c)
    state : ndarray, shape (..., c, w - 1)
        The state after the token.

    Notes
    -----
    2 w c floating-point operations; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = np.array([[4.0]])
    >>> o, state = linattn.causal_conv1d_step(np.array([8.0]), [[0.5, 1.0]], state)
    >>> o, state
    (array([10.]), array([[8.]]))
    """
    name = "causal_conv1d_step"
    given = x, weight, bias
    x, taps, bias, shape, silu = _operands(name, x, weight, bias, activation, tokens=False)
    if state_indices is not None:
        if type(state) is np.ndarray and state.ndim > 1:
            rows = None, state.swapaxes(-1, -2)
            o = pool_call(state_indices, ufuncs["_causal_conv1d_step"], x, taps, bias, silu, *rows)
            if o is not NotImplemented:
                return o[0], state
        result: tuple[Array, Array] = pools.call(
            CONVOLUTION, "step", given, state=state, activation=activation,
            in_place=in_place, state_indices=state_indices,
        )  # fmt: skip
        return result
    dtype = state_dtype(x, taps, bias)
    core = (shape[-1], taps.shape[-2] - 1)
    state_arrays.checked_field(name, "state", state, shape[:-1], core, dtype)
    if in_place:
        state_arrays.updated(name, {"state": (state, 2)}, shape[:-1])
    else:
        state = np.array(np.broadcast_to(state, (*shape[:-1], *core)))
    s = state.swapaxes(-1, -2)
    o, _ = run(ufuncs["_causal_conv1d_step"], (x, taps, bias, silu), (None, s))
    return o, state


def _operands(
    name: str, x: Any, weight: Any, bias: Any, activation: Any, *, tokens: bool = True
) -> tuple[Any, ...]:
    """x, the taps (w, c), the bias, the output's shape, and 1.0 for silu, otherwise 0.0."""
    call = LAYOUT.read_for_gufunc(name, (x, weight, bias), tokens=tokens)
    x, weight, *given = call.arrays
    if weight.shape[-1] < 1:
        raise ValueError(f"{name}: weight has shape {weight.shape}; expected (..., c, w), w >= 1")
    (bias,) = given or [np.zeros(x.shape[-1], x.dtype)]  # zeros that do not affect the dtype
    silu = checks.silu(name, activation)
    taps = weight.swapaxes(-1, -2)
    # The kernel of a step reads usual filters as they lie.
    as_it_lies = not tokens and weight.shape[-1] <= _STEP_TAPS
    if type(taps) is np.ndarray and not (as_it_lies and weight.flags.c_contiguous):
        taps = np.ascontiguousarray(taps)  # once, not for every head and sequence
    return x, taps, bias, call.shape, silu


def _inputs(
    name: str,
    field: str,
    state: Any,
    packing: Any,
    shape: tuple[int, ...],
    taps: Any,
    dtype: np.dtype,
    with_state: bool,
) -> Any:
    """A state as the gufuncs take it, (..., r, w - 1, c).

    For None it is Ellipsis without any state, whose length nothing else gives, and otherwise zeros.
    """
    r, core = packing.r, (shape[-1], taps.shape[-2] - 1)
    if state is None and not with_state:
        return ...
    if state is None:
        return np.broadcast_to(np.zeros((), dtype), (r, *core[::-1]))
    state_arrays.checked_field(
        name, field, state, shape[:-2], (r, *core) if packing.packed else core, dtype
    )
    state = state.swapaxes(-1, -2)
    return state if packing.packed else state[..., None, :, :]


def _result(packing: Any, s: np.ndarray) -> np.ndarray:
    """A gufunc's state, (..., r, w - 1, c), in the layout of the public functions."""
    return (s if packing.packed else s[..., 0, :, :]).swapaxes(-1, -2).copy()


class Convolution(Interface):
    """The convolution as a recurrence of x, weight and bias, None if it is left out."""

    layout, operands = LAYOUT, LAYOUT.operands
    one_array = True
    names = {  # noqa: RUF012
        "forward": "causal_conv1d",
        "backward": "causal_conv1d_backward",
        "step": "causal_conv1d_step",
    }

    def read(self, function: str, operands: tuple[Any, ...], *, tokens: bool = True) -> Call:
        """The operands, checked; a state has the inputs of one token less than a filter."""
        call = self.layout.read(function, operands, tokens=tokens)
        c, w = call.core
        return call._replace(fit=call.fit._replace(core=(c, max(w - 1, 0))))

    def state_cores(self, function: str, call: Call, options: Mapping[str, Any]) -> State:
        return State(call.core)

    def forward(self, operands: tuple[Any, ...], **options: Any) -> Any:
        return causal_conv1d(*operands, **options)

    def backward(
        self, operands: tuple[Any, ...], grad_out: Any, **options: Any
    ) -> tuple[Array, ...]:
        x, weight, bias = operands
        return causal_conv1d_backward(x, weight, grad_out, bias, **options)

    def step(self, operands: tuple[Any, ...], state: Any, **options: Any) -> tuple[Any, Any]:
        x, weight, bias = operands
        return causal_conv1d_step(x, weight, state, bias, **options)


CONVOLUTION = Convolution()
