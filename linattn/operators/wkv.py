"""RWKV-4's attention without queries: forward, gradients, and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._call import pools
from .._call.scaled import Scaled
from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype, state_dtype
from .._core.gufuncs import quiet, run, ufuncs
from .._core.layout import Call, Layout, Operand
from .._core.lazy import in_blocks, is_lazy, refuse_token
from .._docs.templates import filled, filled_like
from .._linattn import fast_call, operators
from .._states import state_arrays, state_fields
from .._states.state_arrays import State

if TYPE_CHECKING:
    from .._types import Array, ArrayLike, DType

LAYOUT = Layout([Operand(*row) for row in operators["wkv"]["inputs"]], output="nm", state="m")


@quiet
@filled
def wkv(
    k: ArrayLike,
    v: ArrayLike,
    w: ArrayLike,
    u: ArrayLike,
    *,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    state_indices: ArrayLike | None = None,
    return_state: bool = False,
    state_at: ArrayLike | None = None,
    out: Array | None = None,
) -> Array | tuple[Array, State]:
    """RWKV-4's attention: a weighted mean of the values so far, each channel by itself.

    ``num_t = e^-w num_{t-1} + e^k_t v_t``, ``den_t = e^-w den_{t-1} + e^k_t``,
    ``o_t = (num_{t-1} + e^(u + k_t) v_t) / (den_{t-1} + e^(u + k_t))``.  All exponentials are taken
    relative to the largest so far, so that keys of any size are right.  Nothing at position t
    changes an output before t.

    Leading axes are broadcast by NumPy's rules.

    Parameters
    ----------
    $wkv_k
    $wkv_v
    $wkv_w
    $wkv_u
    $wkv_initial_state

    Returns
    -------
    o : ndarray, shape (..., n, m)
        0 where there is no key yet.
    $final_state

    Notes
    -----
    Two exponentials and a division a number; scratch of about 16,000 numbers a thread.

    References
    ----------
    Peng et al., "RWKV: Reinventing RNNs for the Transformer Era", EMNLP 2023, eq. 16 and its
    recursion in appendix D

    Examples
    --------
    The mean of the values so far, where nothing decays and all keys are alike.

    >>> import numpy as np, linattn
    >>> v = np.array([[2.0], [4.0], [9.0]])
    >>> linattn.wkv(np.zeros((3, 1)), v, np.zeros(1), np.zeros(1))
    array([[2.],
           [3.],
           [5.]])
    """
    if state_indices is not None or state_at is not None:
        return pools.call(
            WKV, "forward", (k, v, w, u), key_lengths=key_lengths, cu_seqlens=cu_seqlens,
            initial_state=initial_state, return_state=return_state, out=out,
            state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
    plain = key_lengths is None and cu_seqlens is None and initial_state is None
    if plain and not return_state and out is None:
        o = fast_call(ufuncs["wkv"], k, v, w, u, None)
        if o is not NotImplemented:
            return o
    operands = k, v, w, u
    if is_lazy(operands):
        return in_blocks(
            "forward", WKV, operands, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
            initial_state=initial_state, return_state=return_state, out=out,
        )  # fmt: skip
    call = LAYOUT.read("wkv", operands)
    if out is not None:
        checks.out("wkv", out, call.shape, *call.typed)
    if plain and not return_state:
        return run(ufuncs["wkv"], call.cast(), (out,))[0]
    dtype = state_dtype(*call.typed)
    packing = state_arrays.sequences("wkv", call.shape[-2], call.batch, cu_seqlens, key_lengths)
    start = _stacked("wkv", "initial_state", initial_state, packing, call, dtype, -np.inf)
    inputs = *call.cast(), *packing.indices, start
    o, end = run(ufuncs["wkv_state"], inputs, (out, None))
    return (o, _fields_of(end, packing)) if return_state else o


@quiet
@filled_like(wkv)
def wkv_backward(
    k: ArrayLike,
    v: ArrayLike,
    w: ArrayLike,
    u: ArrayLike,
    grad_out: ArrayLike,
    *,
    key_lengths: ArrayLike | None = None,
    cu_seqlens: ArrayLike | None = None,
    initial_state: State | None = None,
    state_indices: ArrayLike | None = None,
    grad_state: State | None = None,
    state_at: ArrayLike | None = None,
) -> tuple[Any, ...]:
    """Gradients of `wkv`.

    Exact for the equation of `wkv`.  The forward result is not needed.

    Returns
    -------
    dk, dv, dw, du : ndarray
        Gradients, in the shapes of k, v, w and u; those of a broadcast operand are summed over
        its repeats.  dw and du have the dtype that is computed in: float32 for 16-bit tokens.
    $gradient_of_state

    Notes
    -----
    Three to four times the time of `wkv`.  Scratch of about 1,700 sqrt(n) numbers a thread.

    Examples
    --------
    Each value has the same weight in a mean.

    >>> import numpy as np, linattn
    >>> v, c = np.array([[2.0], [4.0]]), np.array([[0.0], [1.0]])
    >>> dk, dv, dw, du = linattn.wkv_backward(np.zeros((2, 1)), v, np.zeros(1), np.zeros(1), c)
    >>> dv
    array([[0.5],
           [0.5]])
    """
    name, operands = "wkv_backward", (k, v, w, u)
    if state_indices is not None or state_at is not None:
        cut: tuple[Any, ...] = pools.call(
            WKV, "backward", operands, grad_out=grad_out, key_lengths=key_lengths,
            cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state,
            state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
        return cut
    call = LAYOUT.read(name, operands)
    if not (call.alike and type(grad_out) is np.ndarray) and is_lazy((*operands, grad_out)):
        lazy: tuple[Any, ...] = in_blocks(
            "backward", WKV, operands, grad_out, key_lengths=key_lengths,
            cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state,
        )  # fmt: skip
        return lazy
    grad_out = checks.cotangent(name, grad_out, call.shape)
    typed = *call.typed, grad_out
    dtype, wide = result_dtype(*typed), state_dtype(*typed)
    dtypes = dtype, dtype, wide, wide
    if key_lengths is None and cu_seqlens is None and initial_state is grad_state is None:
        grads = run(ufuncs[name], call.cast(grad_out), dtype=dtype)
        return gradient_sums.sum_all(grads, call.arrays, dtypes)
    packing = state_arrays.sequences(name, call.shape[-2], call.batch, cu_seqlens, key_lengths)
    start = _stacked(name, "initial_state", initial_state, packing, call, wide, -np.inf)
    last = _stacked(name, "grad_state", grad_state, packing, call, wide, 0)
    inputs = *call.cast(grad_out), *packing.indices, start, last
    dk, dv, dw, du, ds = run(ufuncs["wkv_state_backward"], inputs, dtype=dtype)
    dw, du = (gradient_sums.over_axis(x, -2) for x in (dw, du))  # one a sequence
    sums = gradient_sums.sum_all((dk, dv, dw, du), call.arrays, dtypes)
    if initial_state is grad_state is None:
        return sums
    return *sums, state_fields.summed(_fields_of(ds, packing), initial_state)


@quiet
@filled_like(wkv)
def wkv_step(
    k: ArrayLike,
    v: ArrayLike,
    w: ArrayLike,
    u: ArrayLike,
    state: State,
    *,
    in_place: bool = False,
    state_indices: ArrayLike | None = None,
) -> tuple[Array, State]:
    """One token of `wkv`: read it, then let the memory decay and write to it.

    Parameters
    ----------
    k, v : array_like, shape (..., m)
        The token's key and value.
    state : State
        The state before it: ``s``, ``z`` and ``log_scale`` (..., m), of the result's dtype, or
        float32 where that has 16 bits.

    Returns
    -------
    o : ndarray, shape (..., m)
    state : State
        The state after the token.

    Notes
    -----
    Two exponentials and a division a number; the state is read and written once.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> state = linattn.State(np.array([6.0]), np.array([2.0]), np.zeros(1))  # 2 values, mean 3
    >>> o, state = linattn.wkv_step([0.0], [9.0], [0.0], [0.0], state)
    >>> o, state.s, state.z
    (array([5.]), array([15.]), array([3.]))
    """
    name = "wkv_step"
    operands = k, v, w, u
    if state_indices is not None:
        result: tuple[Any, State] = pools.call(
            WKV, "step", operands, state=state, in_place=in_place, state_indices=state_indices
        )
        return result
    call = LAYOUT.read(name, operands, tokens=False)
    if not call.alike:
        refuse_token(name, operands)
    cores = State(*(call.core,) * 3)
    after = state_arrays.checked(name, "state", state, call.batch, cores, state_dtype(*call.typed))
    if in_place:
        state_arrays.in_place(name, after, call.batch, cores)
        after = state
    else:
        after = state_arrays.spread(after, call.batch, cores)
    s = np.stack(after, -2)
    result = run(ufuncs["_wkv_step"], call.cast(), (None, s))[0], after
    rows = [s[..., i, :] for i in range(3)]
    for x, y in zip(after, rows, strict=True):  # from here on, nothing fails for lack of memory
        x[...] = y
    return result


def _stacked(
    function: str,
    name: str,
    state: Any,
    packing: state_arrays.Sequences,
    call: Call,
    dtype: DType,
    largest: float,
) -> Array:
    """A state as the gufuncs take it, (..., r, 3, m); for None zeros and ``largest``."""
    if state is None:
        fields = np.zeros((packing.r, 3, *call.core), dtype)
        fields[:, 2] = largest
        return fields
    core = (packing.r, *call.core) if packing.packed else call.core
    state = state_arrays.checked(function, name, state, call.batch, State(*(core,) * 3), dtype)
    fields = np.stack(np.broadcast_arrays(*state), -2)
    return fields if packing.packed else fields[..., None, :, :]


def _fields_of(fields: Array, packing: state_arrays.Sequences) -> State:
    """The state of what a gufunc returned."""
    if not packing.packed:
        fields = fields[..., 0, :, :]
    return State(*(fields[..., i, :].copy() for i in range(3)))


def _decay(named: Mapping[str, Any], there: Any, xp: Any) -> Any:
    """-w for each token."""
    count = named["k"].shape[-2] if there is None else there.sum(-1)[..., None]
    return -named["w"] * count


WKV = Scaled(
    LAYOUT, wkv, wkv_backward, wkv_step,
    fields=dict.fromkeys(("s", "z", "log_scale"), "m"), first=-np.inf, decay=_decay,
)  # fmt: skip
