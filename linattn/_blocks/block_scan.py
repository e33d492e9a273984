"""A sequence in blocks: the effect of each block on the state, and how effects combine.

A block takes the state before it to the one after it by ``s -> A s + b``: b is the state that the
block leaves by itself, A the product of its tokens' transitions.  So the elements (A, b) of blocks
are computed independently, a scan combines them, and each block then runs from its own state.
`Recurrence.transition` says what A is: nothing for sums (`linattn.causal`); one factor, or one a
row of s, for `gated`; a factor for each number of s for scans: the state after the block if it
begins with ones and x is zero; and else a matrix (f, f): the state after the block if it begins
with the identity and v is zero.

Gradients go the same way from the last block to the first, with A transposed.  `effects` has the
algebra, also that of states under a log scale (`Recurrence.decay`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import feature_maps
from .._call import mapped
from .._call.recurrence import RECURRENCES, Recurrence
from .._core.dtypes import result_dtype, state_dtype
from .._core.gradient_sums import clear_padding, sum_all, summed
from .._core.gufuncs import quiet, run, ufuncs
from .._core.products import product, transposed_product
from .._states.state_arrays import State
from .effects import Element, ScaledElement

if TYPE_CHECKING:
    from .._call.interface import Interface
    from .._call.recurrence import Operands
    from .._core.layout import Operand
    from .._types import DType


def with_map(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a map, which not every recurrence has."""
    return {"feature_map": "identity", **options}


@quiet
def element(
    name: str, operands: tuple[Any, ...], key_lengths: Any = None, **options: Any
) -> Element | ScaledElement:
    """The element of a block of tokens."""
    r = RECURRENCES[name]
    if r.transition == "identity":
        return Element(None, *_sums(operands, key_lengths, **options))

    def end_of(operands: tuple[Any, ...], start: State | None) -> State:
        state: State = r.forward(
            operands, key_lengths=key_lengths, initial_state=start, return_state=True, **options
        )[1]
        return state

    if r.transition == "scaled":
        call = r.layout.read(r.name, operands)
        dtype, normalize = state_dtype(*call.typed), options.get("normalize", True)
        return scaled_effect(
            r, operands, end_of, dtype, key_lengths=key_lengths, normalize=normalize
        )
    return effect(r, operands, end_of, key_lengths=key_lengths)


def scaled_effect(
    r: Interface,
    operands: tuple[Any, ...],
    end_of: Callable[..., State],
    dtype: DType,
    *,
    xp: Any = np,
    key_lengths: Any = None,
    normalize: bool = True,
) -> ScaledElement:
    """The element of a block; ``end_of(operands, state)`` is the state after it."""
    pairs = [*zip(r.operands, operands, strict=True)]
    sizes = {
        letter: size
        for row, x in pairs
        for letter, size in zip(row.dims, x.shape[x.ndim - len(row.dims) :], strict=True)
    }
    nothing = r.state(lambda shape, value: xp.full(shape, value, dtype), r.cores(sizes, normalize))
    # Without any memory; so that the log scale is that of the block's own keys.
    nothing = nothing._replace(log_scale=xp.full_like(nothing.log_scale, -np.inf))
    end = end_of(operands, nothing)
    named = {row.name: x for row, x in pairs}
    there = None
    if key_lengths is not None:
        there = xp.arange(sizes["n"]) < xp.asarray(key_lengths)[..., None]
    assert r.decay is not None
    a = r.decay(named, there, xp).astype(dtype)
    return ScaledElement(xp.broadcast_to(a, end.log_scale.shape), *end, r.first)


def _sums(
    operands: tuple[Any, ...], key_lengths: Any, *, feature_map: Any, normalize: bool,
    **unused: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """``sum phi(k) v^T`` and ``sum phi(k)``, without the outputs that `causal` would make."""
    dtype = result_dtype(*operands)
    k, v = (np.asarray(x, dtype) for x in operands[1:])
    if key_lengths is not None or mapped.outside(feature_map):
        k, v = (np.asarray(x, state_dtype(*operands)) for x in (k, v))
        k, feature_map = feature_maps.get(feature_map)(k), "identity"
    if key_lengths is not None:
        there = (np.arange(k.shape[-2]) < np.asarray(key_lengths)[..., None])[..., None]
        k, v = np.where(there, k, 0), np.where(there, v, 0)
    if not normalize:
        return run(ufuncs[f"state_{feature_map}_sum"], (k, v))[0], None
    s, z = run(ufuncs[f"state_{feature_map}"], (k, v))
    return s, z


def effect(
    r: Recurrence, operands: Sequence[Any], end_of: Callable[..., State], xp: Any = np,
    key_lengths: Any = None,
) -> Element:  # fmt: skip
    """The element of operands that are arrays of ``xp``; ``end_of(operands, state)`` is the state
    after them."""
    end = end_of(operands, None)
    a = _transition(r, operands, end, end_of, xp, key_lengths)
    return Element(a, end.s, end.z, r.transition == "matrix")


@quiet
def _transition(
    r: Recurrence, operands: Sequence[Any], end: State, end_of: Callable[..., State], xp: Any,
    key_lengths: Any,
) -> Any:  # fmt: skip
    """A of a block: None for sums, factors for gates and scans, else a matrix."""
    if r.transition == "identity":
        return None
    given = list(zip(r.operands, operands, strict=True))
    if r.transition == "elementwise":
        return end_of(_unwritten(given, "x", xp), State(xp.ones_like(end.s))).s
    longest = max(x.ndim for x in operands[: r.layout.leading])
    if r.transition == "decay":
        g = next(x for row, x in given if row.name == "g").astype(end.s.dtype)
        g = g[..., None] if g.ndim < longest else g
        if key_lengths is not None:
            there = xp.arange(g.shape[-2]) < xp.asarray(key_lengths)[..., None]
            g = xp.where(there[..., None], g, 0)
        return xp.exp(g.sum(-2))[..., None]
    for row, x in given:
        if row.channels == "m" and x.ndim >= longest:
            raise ValueError(
                f"{r.name}: {row.name} has shape {x.shape}, one number a value channel; expected "
                "one a token where the sequence is in blocks, as channels would have a transition "
                "each"
            )
    f = end.s.shape[-2]
    return end_of(_unwritten(given, "v", xp, f), State(xp.eye(f, dtype=end.s.dtype))).s


def _unwritten(
    given: Sequence[tuple[Operand, Any]], name: str, xp: Any, width: int | None = None
) -> Operands:
    """The operands with zeros for the one that is written to the state, of that width."""
    return tuple(
        xp.broadcast_to(xp.zeros((), x.dtype), x.shape if width is None else (*x.shape[:-1], width))
        if row.name == name
        else x
        for row, x in given
    )


def gradient_is_sum(r: Recurrence, *, normalize: bool = False, **unused: Any) -> bool:
    """Whether the gradient of the state before follows from outputs alone, seven times as fast."""
    return r.transition == "identity" and not normalize


@quiet
def gradient_sum(
    q: Any, grad_out: Any, *, feature_map: Any, scale: float, **unused: Any
) -> Element:
    """The element of that gradient, ``scale sum phi(q) g^T``."""
    s, _ = _sums((q, q, grad_out), None, feature_map=feature_map, normalize=False)
    return Element(None, s * s.dtype.type(scale))


def empty_state(
    r: Interface, operands: tuple[Any, ...], sequences: int | None = None, **options: Any
) -> State:
    """The state before all tokens.

    It has all leading axes, so that its gradient is not summed over any.
    """
    call, cores = r.checked(r.name, tuple(operands), options)
    lead = call.batch if sequences is None else (*call.batch, sequences)
    dtype = state_dtype(*call.typed)
    return r.state(lambda shape, value: np.full((*lead, *shape), value, dtype), cores)


def with_all_axes(state: State | None, empty: State) -> State:
    """The state with the leading axes of the empty one, which stands for None."""
    if state is None:
        return empty
    return State(*(
        None if x is None else np.broadcast_to(y, x.shape)
        for x, y in zip(empty, (*state, None)[:3], strict=True)
    ))  # fmt: skip


# --- queries that see all keys ------------------------------------------------------


@quiet
def read(
    q: Any, state: State, *, feature_map: Any, normalize: bool, eps: float, scale: float
) -> Any:
    """The outputs of queries from the sums over all keys, as in `linattn.noncausal`."""
    _, o, den = _read(q, state, feature_map, normalize, eps, scale)
    return (o / den if normalize else o).astype(result_dtype(q), copy=False)


def _read(
    q: Any, state: State, feature_map: Any, normalize: bool, eps: float, scale: float
) -> tuple[Any, Any, Any]:
    a = feature_maps.get(feature_map)(q) * state.s.dtype.type(scale)
    o = product(a, state.s)
    den = product(a, state.z[..., None]) + a.dtype.type(eps) if normalize else None
    return a, o, den


@quiet
def read_backward(
    q: Any, state: State, grad_out: Any, *, feature_map: Any, normalize: bool, eps: float,
    scale: float,
) -> tuple[Any, State]:  # fmt: skip
    """The gradients of the queries and of the sums."""
    phi = feature_maps.get(feature_map)
    a, o, den = _read(q, state, feature_map, normalize, eps, scale)
    grad = np.asarray(grad_out, a.dtype)
    dz = None
    if normalize:
        grad = grad / den
        weight = -(grad * o).sum(-1, keepdims=True) / den
        da = product(grad, state.s.mT) + weight * state.z[..., None, :]
        dz = transposed_product(a, weight)[..., 0]
    else:
        da = product(grad, state.s.mT)
    da = summed(da, a.shape, da.dtype)
    dq = phi.input_gradient(q, a.dtype.type(scale) * da)
    return dq.astype(result_dtype(q), copy=False), State(transposed_product(a, grad), dz)


@quiet
def sums_backward(
    k: Any, v: Any, grad: State, key_lengths: Any, *, feature_map: Any, **options: Any
) -> tuple[Any, Any]:
    """The gradients of keys and values, from that of the sums."""
    phi = feature_maps.get(feature_map)
    b = phi(k)
    db, dv = product(np.asarray(v, b.dtype), grad.s.mT), product(b, grad.s)
    if grad.z is not None:
        db += grad.z[..., None, :]
    for x in (db, dv):  # heads that share keys may have other lengths
        clear_padding(x, key_lengths)
    dtype = result_dtype(k, v)
    db, dv = sum_all((db, dv), (b, v), (db.dtype, dtype))
    dk = phi.input_gradient(k, db)
    clear_padding(dk, key_lengths)
    return dk.astype(dtype, copy=False), dv
