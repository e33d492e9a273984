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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import feature_maps
from .._call import mapped
from .._call.recurrence import Recurrence
from .._core.dtypes import result_dtype, state_dtype
from .._core.gradient_sums import clear_padding, sum_all, summed
from .._core.gufuncs import quiet, run, ufuncs
from .._core.products import product, transposed_product
from .._states.state_arrays import State
from ..operators.registry import RECURRENCES
from .effects import Element, ScaledElement, StackedElement, stacked

if TYPE_CHECKING:
    from .._call.recurrence import Operands
    from .._core.layout import Operand
    from .._types import DType


class Settings(NamedTuple):
    """What all blocks of a call have in common: pickle can send it to where a block is."""

    name: str  #: of the recurrence
    options: dict[str, Any]
    cu_seqlens: Any = None
    dtype: DType | None = None  #: of outputs; if it is float32, 16-bit operands' gradients too


@quiet
def element(
    call: Settings, operands: Operands, key_lengths: Any
) -> Element | StackedElement | ScaledElement:
    """The effect of a block on the state."""
    r, options = RECURRENCES[call.name], call.options
    if r.transition == "identity":
        return Element(None, *_sums(operands[1:], key_lengths, **options))

    def end_of(operands: Operands, start: State | None) -> State:
        state: State = r.forward(
            operands, key_lengths=key_lengths, initial_state=start, return_state=True, **options
        )[1]
        return state

    dtype = None if r.decay is None else r.layout.read(r.name, operands).state_dtype
    normalize = options.get("normalize", True)
    return effect(r, operands, end_of, dtype, key_lengths=key_lengths, normalize=normalize)


def forward(
    call: Settings, operands: Operands, key_lengths: Any, state: State | None, *,
    with_end: bool = False,
) -> Any:  # fmt: skip
    """The outputs of a block from the state before it, and the one after it if it is wanted."""
    return RECURRENCES[call.name].forward(
        operands, key_lengths=key_lengths, cu_seqlens=call.cu_seqlens, initial_state=state,
        return_state=with_end, **call.options,
    )  # fmt: skip


def backward(
    call: Settings, operands: Operands, key_lengths: Any, grad_out: Any, state: State | None,
    grad_state: State | None,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of a block's operands, None for those left out, and of the state before it.

    That of the state has all leading axes.
    """
    r = RECURRENCES[call.name]
    *arrays, grad_out = _at_least(call.dtype, *operands, grad_out)
    *grads, start = r.backward(
        tuple(arrays), grad_out, key_lengths=key_lengths, cu_seqlens=call.cu_seqlens,
        initial_state=_with_all_axes(state, call, tuple(arrays)), grad_state=grad_state,
        **call.options,
    )  # fmt: skip
    found = iter(grads)
    return *(None if x is None else next(found) for x in arrays), start


def turned(
    call: Settings, operands: Operands, key_lengths: Any, element: Any, grads: tuple[Any, ...],
    state: State | None,
) -> Any:  # fmt: skip
    """The effect of a block on the gradient of the state, from its own gradients alone."""
    return element.turned(grads[-1], state)


def _at_least(dtype: Any, *arrays: Any) -> list[Any]:
    """The arrays, 16-bit ones in float32 if that is ``dtype``: so their gradients are too."""
    if dtype != np.float32:
        return list(arrays)
    return [x if x is None or x.dtype.itemsize > 2 else np.asarray(x, dtype) for x in arrays]


def effect(
    r: Recurrence, operands: Operands, end_of: Callable[..., State], dtype: DType | None, *,
    xp: Any = np, key_lengths: Any = None, normalize: bool = True,
) -> Element | StackedElement | ScaledElement:  # fmt: skip
    """The element of operands that are arrays of ``xp``; ``end_of(operands, state)`` is the state
    after them, whose dtype has to be known if it has a log scale."""
    if r.decay is not None:
        return _scaled_effect(r, operands, end_of, dtype, xp, key_lengths, normalize)
    end = end_of(operands, None)
    a = _transition(r, operands, end, end_of, xp, key_lengths)
    if r.stacked:
        return StackedElement(a, end.s, end.z)
    return Element(a, end.s, end.z, r.transition == "matrix")


def _scaled_effect(
    r: Recurrence, operands: Operands, end_of: Callable[..., State], dtype: Any, xp: Any,
    key_lengths: Any, normalize: bool,
) -> ScaledElement:  # fmt: skip
    pairs = [*zip(r.operands, operands, strict=True)]
    sizes = {
        letter: size
        for row, x in pairs
        for letter, size in zip(row.dims, x.shape[x.ndim - len(row.dims) :], strict=True)
    }
    # Without any memory: so the log scale after the block is that of its own keys.
    nothing = {
        x: xp.full(core, -np.inf if x == "log_scale" else 0.0, dtype)
        for x, core in r.cores(sizes, normalize).items()
    }
    end = end_of(operands, State(**nothing))
    named = {row.name: x for row, x in pairs}
    there = None
    if key_lengths is not None:
        there = xp.arange(sizes["n"]) < xp.asarray(key_lengths)[..., None]
    assert r.decay is not None
    a = r.decay(named, there, xp).astype(dtype)
    return ScaledElement(xp.broadcast_to(a, end.log_scale.shape), *end, r.first)


def _sums(
    operands: Sequence[Any], key_lengths: Any, *, feature_map: Any, normalize: bool, **unused: Any
) -> tuple[Any, Any]:
    """``sum phi(k) v^T`` and ``sum phi(k)``, without the outputs that `causal` would make."""
    dtype = result_dtype(*operands)
    k, v = (np.asarray(x, dtype) for x in operands)
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
                f"{r.name}: {row.name} has shape {x.shape}, one number per value channel; expected "
                "one per token where the sequence is in blocks, as each channel would have a "
                "transition of its own"
            )
    f = end.s.shape[-2]
    if r.stacked:
        one = xp.eye(2 * f, dtype=end.s.dtype)
        end = end_of(_unwritten(given, "v", xp, 2 * f), State(one[:f], one[f:]))
        return stacked(end.s, end.z)
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
def gradient_sum(call: Settings, operands: Operands, key_lengths: Any, grad_out: Any) -> Element:
    """The element of that gradient, ``scale sum phi(q) g^T``."""
    options = call.options
    s, _ = _sums((operands[0], grad_out), None, **options | {"normalize": False})
    return Element(None, s * s.dtype.type(options["scale"]))


def _with_all_axes(state: State | None, call: Settings, operands: Operands) -> State:
    """The state with all leading axes, so that its gradient is not summed over any; None is the
    state before all tokens."""
    r, packed = RECURRENCES[call.name], call.cu_seqlens
    read, cores = r.checked(r.name, operands, call.options)
    lead = read.batch if packed is None else (*read.batch, len(packed) - 1)
    if state is None:
        dtype = read.state_dtype
        found = r.start(lambda shape, value: np.full((*lead, *shape), value, dtype), cores)
    else:
        given = dict(zip(State._fields, state, strict=False))  # a pair is a state too
        found = {x: np.broadcast_to(given[x], (*lead, *core)) for x, core in cores.items()}
    return State(**found)


# --- queries that see all keys ------------------------------------------------------


@quiet
def sums(call: Settings, operands: Operands, key_lengths: Any) -> State:
    """The sums over a block of keys and values."""
    return State(*_sums(operands, key_lengths, **call.options))


@quiet
def read(call: Settings, operands: Operands, key_lengths: Any, state: State) -> Any:
    """The outputs of queries from the sums over all keys, as in `linattn.noncausal`."""
    (q,) = operands
    _, o, den = _read(q, state, **call.options)
    return (o if den is None else o / den).astype(call.dtype, copy=False)


def _read(
    q: Any, state: State, *, feature_map: Any, normalize: bool, eps: float, scale: float
) -> tuple[Any, Any, Any]:
    a = feature_maps.get(feature_map)(q) * state.s.dtype.type(scale)
    o = product(a, state.s)
    den = product(a, state.z[..., None]) + a.dtype.type(eps) if normalize else None
    return a, o, den


@quiet
def read_backward(
    call: Settings, operands: Operands, key_lengths: Any, grad_out: Any, state: State
) -> tuple[Any, State]:
    """The gradients of the queries and of the sums."""
    q, grad_out = _at_least(call.dtype, *operands, grad_out)
    a, o, den = _read(q, state, **call.options)
    grad = np.asarray(grad_out, a.dtype)
    dz = None
    if den is None:
        da = product(grad, state.s.mT)
    else:
        grad = grad / den
        weight = -(grad * o).sum(-1, keepdims=True) / den
        da = product(grad, state.s.mT) + weight * state.z[..., None, :]
        dz = transposed_product(a, weight)[..., 0]
    da = summed(da, a.shape, da.dtype) * a.dtype.type(call.options["scale"])
    dq = feature_maps.get(call.options["feature_map"]).input_gradient(q, da)
    return dq.astype(result_dtype(q), copy=False), State(transposed_product(a, grad), dz)


@quiet
def sums_backward(
    call: Settings, operands: Operands, key_lengths: Any, grad: State
) -> tuple[Any, Any]:
    """The gradients of keys and values, from that of the sums."""
    k, v = _at_least(call.dtype, *operands)
    phi = feature_maps.get(call.options["feature_map"])
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
