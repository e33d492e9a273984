"""mLSTM, the matrix memory of xLSTM: forward, gradients, and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._call import pools
from .._call.scaled import Scaled
from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype, state_dtype
from .._core.gufuncs import internal_ufuncs, quiet, run
from .._core.layout import Call, Layout, Operand
from .._core.lazy import in_blocks, is_lazy, refuse_token
from .._core.settings import one_isa
from .._docs.templates import filled, filled_like
from .._linattn import fast_call, pool_call
from .._states import state_arrays, state_fields
from .._states.state_arrays import State
from . import mlstm_gradients
from .mlstm_gates import Gates, Numbers, both

if TYPE_CHECKING:
    from .._types import Array, ArrayLike, Bool, DType

LAYOUT = Layout([
    Operand("q", "nd"), Operand("k", "nd"), Operand("v", "nm"),
    Operand("i", "n", state_dtype=True), Operand("f", "n", state_dtype=True),
])  # fmt: skip


@quiet
@one_isa()
@filled
def mlstm(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    i: ArrayLike,
    f: ArrayLike,
    *,
    scale: float | None = None,
    normalize: Bool = True,
    eps: float = 0.0,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    state_indices: ArrayLike | None = None,
    return_state: bool = False,
    state_at: ArrayLike | None = None,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """The matrix memory of xLSTM: exponential input gates, sigmoid forget gates.

    ``s_t = sigma(f_t) s_{t-1} + e^i_t k_t v_t^T``, ``z_t = sigma(f_t) z_{t-1} + e^i_t k_t``,
    ``o_t = scale s_t^T q_t / max(|scale z_t.q_t|, 1)``.  The memory is held relative to a running
    maximum of earlier gates, ``m_t = max(log sigma(f_t) + m_{t-1}, i_t)``, so that gates of any
    size are right.  Nothing at position t changes an output before t.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $mlstm_gates
    $mlstm_options
    $mlstm_initial_state

    Returns
    -------
    o : ndarray, shape (..., n, m)
    $final_state

    Notes
    -----
    About the time of `gated` with one gate a token: 4 n d m floating-point operations a head.
    Scratch of 2 d m numbers a thread, and three numbers a token.  An input gate of -inf writes
    nothing, whatever the key and the value are; a forget gate of -inf resets the memory, even where
    it holds inf or NaN.

    References
    ----------
    Beck et al., "xLSTM: Extended Long Short-Term Memory", NeurIPS 2024, eq. 19-27, and eq. 15-17
    for the running maximum

    Examples
    --------
    Without forgetting the output is the mean of the values, weighted by e^i.

    >>> import numpy as np, linattn
    >>> x, v = np.ones((3, 1)), np.array([[2.0], [4.0], [9.0]])
    >>> linattn.mlstm(x, x, v, np.zeros(3), np.full(3, np.inf))
    array([[2.],
           [3.],
           [5.]])
    """
    name, operands = "mlstm", (q, k, v, i, f)
    if state_indices is not None or state_at is not None:
        return pools.call(
            MLSTM, "forward", operands, scale=scale, normalize=normalize, eps=eps,
            key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
            return_state=return_state, out=out, state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
    call = LAYOUT.read(name, operands)
    if not call.alike and is_lazy(operands):
        return in_blocks(
            "forward", MLSTM, operands, scale=scale, normalize=normalize, eps=eps,
            key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
            return_state=return_state, out=out,
        )  # fmt: skip
    numbers = _numbers(name, call.typed, call, scale, normalize, eps)
    if out is not None:
        checks.out(name, out, call.shape, *call.typed)
    packing = state_arrays.sequences(name, call.shape[-2], call.batch, cu_seqlens, key_lengths)
    wide = state_dtype(*call.typed)
    start = _first(name, initial_state, packing, call, wide, numbers.normalize)
    *tokens, in_gate, forget = call.cast()
    gates = Gates.of(in_gate, forget, packing, start[-1], wide)
    wanted = [None if return_state else ...] * (2 if numbers.normalize else 1)
    inputs = *tokens, *gates[:3], *numbers, *packing.indices, *both(start[:-1])
    o, *end = run(internal_ufuncs["mlstm_state"], inputs, (out, *both(wanted)))
    if not return_state:
        return o
    return o, _result(packing, end[: len(wanted)], gates.last, call)


@quiet
@one_isa()
@filled_like(mlstm)
def mlstm_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    i: ArrayLike,
    f: ArrayLike,
    grad_out: ArrayLike,
    *,
    scale: float | None = None,
    normalize: Bool = True,
    eps: float = 0.0,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    state_indices: ArrayLike | None = None,
    grad_state: State | None = None,
    state_at: ArrayLike | None = None,
) -> tuple[Any, ...]:
    """Gradients of `mlstm`.

    Exact for the equation of `mlstm`, the larger of the two denominators and ``eps`` included.
    The forward result is not needed.

    Returns
    -------
    dq, dk, dv, di, df : ndarray
        Gradients, in the shapes of q, k, v, i and f; those of a broadcast operand are summed
        over its repeats.  di and df have the dtype that is computed in: float32 for 16-bit
        tokens.
    $gradient_of_state

    Notes
    -----
    About the time of `gated_backward`, with m + 1 value channels, and its memory.  A gradient of
    the final state takes the time of `mlstm` as well.

    Examples
    --------
    Each value has the same weight in a mean.

    >>> import numpy as np, linattn
    >>> x, v, c = np.ones((2, 1)), np.array([[2.0], [4.0]]), np.array([[0.0], [1.0]])
    >>> gates = np.zeros(2), np.full(2, np.inf)
    >>> dq, dk, dv, di, df = linattn.mlstm_backward(x, x, v, *gates, c)
    >>> dv
    array([[0.5],
           [0.5]])
    """
    name, operands = "mlstm_backward", (q, k, v, i, f)
    if state_indices is not None or state_at is not None:
        cut: tuple[Any, ...] = pools.call(
            MLSTM, "backward", operands, grad_out=grad_out, scale=scale, normalize=normalize,
            eps=eps, key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
            grad_state=grad_state, state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
        return cut
    call = LAYOUT.read(name, operands)
    if not (call.alike and type(grad_out) is np.ndarray) and is_lazy((*operands, grad_out)):
        lazy: tuple[Any, ...] = in_blocks(
            "backward", MLSTM, operands, grad_out, scale=scale, normalize=normalize, eps=eps,
            key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
            grad_state=grad_state,
        )  # fmt: skip
        return lazy
    grad_out = checks.cotangent(name, grad_out, call.shape)
    typed = *call.typed, grad_out
    numbers = _numbers(name, typed, call, scale, normalize, eps)
    packing = state_arrays.sequences(name, call.shape[-2], call.batch, cu_seqlens, key_lengths)
    dtype, wide = result_dtype(*typed), state_dtype(*typed)
    start = _first(name, initial_state, packing, call, wide, numbers.normalize)
    last = _first(name, grad_state, packing, call, wide, numbers.normalize, "grad_state")
    with_state = initial_state is not None or grad_state is not None
    *tokens, in_gate, forget, cotangent = call.cast(grad_out)
    gates = (x.astype(wide, copy=False) for x in (in_gate, forget))
    arrays = *tokens, *gates, cotangent
    *grads, dstate = mlstm_gradients.gradients(
        arrays, call, numbers, packing, start, last, dtype, with_state=with_state
    )
    sums = gradient_sums.sum_all(grads, call.arrays, (dtype, dtype, dtype, wide, wide))
    if not with_state:
        return sums
    *fields, log_scale = dstate
    return *sums, state_fields.summed(_result(packing, fields, log_scale, call), initial_state)


@quiet
@filled_like(mlstm)
def mlstm_step(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    i: ArrayLike,
    f: ArrayLike,
    state: State,
    *,
    scale: float | None = None,
    normalize: Bool = True,
    eps: float = 0.0,
    in_place: bool = False,
    state_indices: ArrayLike | None = None,
) -> tuple[Array, State]:
    """One token of `mlstm`: let the memory decay, write to it, then read it.

    Parameters
    ----------
    $token
    i, f : array_like, shape (...)
        Its input and forget gates.
    state : State
        The memory so far: ``s`` (..., d, m), ``z`` (..., d), or None without the normaliser, and
        ``log_scale`` (...), of the result's dtype, or float32 where that has 16 bits.

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

    Notes
    -----
    4 d m floating-point operations a head; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([[6.0]]), np.array([2.0]), np.array(0.0))
    >>> o, state = linattn.mlstm_step([1.0], [1.0], [9.0], 0.0, np.inf, state)
    >>> o, state.s
    (array([5.]), array([[15.]]))
    """
    name, step = "mlstm_step", internal_ufuncs["_mlstm_step"]
    if type(state) is State and type(q) is np.ndarray and type(normalize) is bool:
        written = in_place or state_indices is not None
        after = state if written else state_arrays.copy(state)
        call_step: Any = fast_call if state_indices is None else partial(pool_call, state_indices)
        factor = _default_scale(q.shape[-1]) if scale is None and q.ndim else scale
        o = call_step(
            step, q, k, v, i, f, factor, eps, float(normalize), None, *_fields_of(after, normalize)
        )
        if o is not NotImplemented:
            return o[0], after
    if state_indices is not None:
        result: tuple[Any, State] = pools.call(
            MLSTM, "step", (q, k, v, i, f), state=state, scale=scale, normalize=normalize,
            eps=eps, in_place=in_place, state_indices=state_indices,
        )  # fmt: skip
        return result
    operands = q, k, v, i, f
    call = LAYOUT.read(name, operands, tokens=False)
    if not call.alike:
        refuse_token(name, operands)
    numbers = _numbers(name, call.typed, call, scale, normalize, eps)
    wide = state_dtype(*call.typed)
    cores = MLSTM.cores(call.fit.sizes, numbers.normalize)
    after = state_arrays.checked(name, "state", state, call.batch, cores, wide)
    if in_place:
        state_arrays.in_place(name, after, call.batch, cores)
        after = state
    else:
        after = state_arrays.spread(after, call.batch, cores)
    outputs = None, *_fields_of(after, bool(numbers.normalize))
    return run(step, (*call.cast(), *numbers), outputs)[0], after


def _fields_of(state: State, normalize: bool) -> tuple[Any, ...]:
    """What the gufunc of a step writes to, which has an array z that it ignores without one."""
    s, z, log_scale = state
    if z is None and not normalize and type(s) is np.ndarray:
        z = np.empty(s.shape[:-1], s.dtype)
    return s, z, log_scale


def _numbers(
    function: str, typed: tuple[Any, ...], call: Call, scale: Any, normalize: Any, eps: Any
) -> Numbers:
    if scale is None:
        scale = _default_scale(call.fit.sizes["d"])
    return Numbers(
        checks.number(function, "scale", scale, *typed),
        checks.positive(function, "eps", eps, *typed, zero=True),
        float(checks.flag(function, "normalize", normalize)),
    )


def _default_scale(d: int) -> float:
    return float(max(d, 1) ** -0.5)


def _first(
    function: str,
    state: Any,
    packing: state_arrays.Sequences,
    call: Call,
    dtype: DType,
    normalize: float,
    name: str = "initial_state",
) -> tuple[Any, ...]:
    """A state as the gufuncs take it, with an axis r: s, z with the normaliser, and log_scale."""
    if state is None:
        return (...,) * (3 if normalize else 2)
    packed = (packing.r,) if packing.packed else ()
    cores = MLSTM.cores(call.fit.sizes, normalize, *packed)
    fields = state_arrays.checked(function, name, state, call.batch, cores, dtype)
    return state_arrays.operands(fields, cores, packing)


def _result(packing: state_arrays.Sequences, fields: Any, log_scale: Array, call: Call) -> State:
    """The state of what gufuncs returned, with an axis r."""
    s, z = fields[0], fields[1] if len(fields) > 1 else None
    top = np.array(np.broadcast_to(log_scale, s.shape[:-2]))
    if packing.packed:
        return State(s, z, top)
    return State(s[..., 0, :, :], None if z is None else z[..., 0, :], top[..., 0])


def _decay(named: Mapping[str, Any], there: Any, xp: Any) -> Any:
    """The sum of log sigma(f)."""
    f = named["f"] if there is None else xp.where(there, named["f"], np.inf)
    return -xp.logaddexp(xp.zeros_like(f), -f).sum(-1)


MLSTM = Scaled(
    LAYOUT, mlstm, mlstm_backward, mlstm_step,
    fields={"s": "dm", "z": "d", "log_scale": ""}, first=0.0, decay=_decay,
)  # fmt: skip
