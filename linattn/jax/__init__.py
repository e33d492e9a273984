"""linattn for JAX: the operators on CPU arrays, differentiable, under jit, vmap and shard_map.

Names and arguments are those of the NumPy functions, but there is no ``out``, no ``in_place`` and
no ``_backward``; ``axis_name`` is more, and ``feature_map`` may be a function of JAX's arrays as
well.  `linattn.feature_maps.PositiveRandomFeatures` need ``normalize=False``.  A call goes from XLA
to the C kernels without Python or a copy; only feature maps that are objects run in Python, on
XLA's buffers.  Gradients are reverse-mode and flow through states; there are none of gradients.
``scale`` and ``eps`` are numbers when a function is traced.

`jax.export` needs ``DisabledSafetyCheck.custom_call("linattn")``, and takes sizes that are symbols;
a process that runs an export has to import linattn.jax first.  Feature maps that are objects work
in no process but the one that exported them.

If a version of JAX does not accept the handler, there is a warning, `IN_C` is False, and calls use
`jax.pure_callback`, on one device alone.

Within `jax.shard_map`, ``axis_name`` says along which axis of the mesh the tokens are cut: each
device computes what its stretch does to the state, and one all-gather of that is all that is sent.
With it there are no ``key_lengths`` and no ``cu_seqlens``, and ``beta`` is one number a token;
`noncausal` has no ``axis_name``.  Gradients need `jax.shard_map` with ``check_vma=False``.
"""

from __future__ import annotations

from typing import Any

try:
    import jax.numpy  # noqa: F401
except ImportError as error:
    raise ImportError(f"linattn.jax needs {error.name}: pip install 'linattn[jax]'") from error

import linattn

from .._bridge_docs import RESCALING, Bridge, like
from .._masks import refuses_masks
from .._state import State
from ..attention import CAUSAL, NONCAUSAL
from ..delta import DELTA
from ..dplr import DPLR
from ..gated import GATED
from ..gated_delta import GATED_DELTA
from . import _functions, _recurrence, _sharded
from ._call import IN_C

__all__ = [
    "IN_C",
    "State",
    "causal",
    "causal_conv1d",
    "causal_conv1d_step",
    "delta",
    "delta_step",
    "dplr",
    "dplr_step",
    "gated",
    "gated_delta",
    "gated_delta_step",
    "gated_step",
    "initial_state",
    "linformer",
    "log_decay",
    "noncausal",
    "softmax_attention",
    "step",
]


_JAX = Bridge(
    words=RESCALING | {"ndarray": "jax.Array", "NumPy's": "JAX's"},
    parameters="""
    axis_name : str, optional
        Within `jax.shard_map`, the axis of the mesh along which the tokens are cut; the states
        are those of the whole sequence, alike on every device.""",
    raises="""
    TypeError
        If an operand is complex, or not numbers.
        If ``eps`` or ``scale`` is traced, or no real number.
        If ``feature_map`` is neither a name, a map, nor a function.
        If ``normalize`` is not a bool.
        If ``activation`` is no string.
        If ``key_lengths`` or ``cu_seqlens`` is not of integers.
        If ``initial_state`` or ``state`` is no State.
    ValueError
        If shapes do not match.
        If ``eps`` or ``scale`` is not finite.
        If ``feature_map`` is the name of no map.
        If ``activation`` is unknown.
        If ``normalize`` is True and the map one of PositiveRandomFeatures.
        If ``key_lengths`` or ``cu_seqlens`` is out of range.
        If ``initial_state`` or ``state`` has another shape, or a wrong ``z``.
        If ``axis_name`` is given with key_lengths, cu_seqlens, or a beta a value channel.""",
    notes="Where ``key_lengths`` or ``cu_seqlens`` is traced, its values are not checked.",
)
_SCALED = _JAX._replace(
    raises="""
    TypeError
        If an operand is complex, or ``scale`` is traced, or no real number.
    ValueError
        If shapes do not match, or ``scale`` is not finite.""",
)


def _forward(axis_name: str | None, r: Any, operands: dict[str, Any], **options: Any) -> Any:
    if axis_name is None:
        return _recurrence.forward(r, operands, **options)
    return _sharded.forward(r, operands, axis_name, **options)


@refuses_masks
@like(linattn.causal, _JAX)
def causal(
    q: Any, k: Any, v: Any, *, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.causal` on JAX's arrays.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, linattn.jax
    >>> x = jnp.ones((3, 2))
    >>> jax.grad(lambda v: linattn.jax.causal(x, x, v, eps=0.0).sum())(x).sum(0)
    Array([3., 3.], dtype=float32)
    """
    return _forward(
        axis_name, CAUSAL,
        {"q": q, "k": k, "v": v}, feature_map=feature_map, normalize=normalize, eps=eps,
        scale=scale, key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


@refuses_masks
@like(linattn.noncausal, _JAX)
def noncausal(
    q: Any, k: Any, v: Any, *, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0, key_lengths: Any = None,
) -> Any:  # fmt: skip
    """`linattn.noncausal` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.array([[0.0], [1.0], [5.0]])
    >>> linattn.jax.noncausal(x, x, x, feature_map="relu", key_lengths=2, eps=0.0)[1:]
    Array([[1.],
           [1.]], dtype=float32)
    """
    return _recurrence.forward(
        NONCAUSAL, {"q": q, "k": k, "v": v}, feature_map=feature_map, normalize=normalize,
        eps=eps, scale=scale, key_lengths=key_lengths,
    )  # fmt: skip


@like(linattn.step, _JAX)
def step(
    q: Any, k: Any, v: Any, state: State, *, feature_map: Any = "elu", normalize: bool = True,
    eps: float = 1e-6, scale: float = 1.0,
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.step`, one token of `causal`.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> state = linattn.jax.State(jnp.zeros((1, 1)), jnp.zeros(1))
    >>> x = jnp.ones(1)
    >>> o, state = linattn.jax.step(x, x, x, state)
    >>> state.s
    Array([[2.]], dtype=float32)
    """
    return _recurrence.step(
        CAUSAL, {"q": q, "k": k, "v": v}, state, feature_map=feature_map, normalize=normalize,
        eps=eps, scale=scale,
    )  # fmt: skip


@refuses_masks
@like(linattn.initial_state, _JAX)
def initial_state(
    q: Any, k: Any, v: Any, *others: Any, operator: str = "causal", feature_map: Any = "elu",
    normalize: bool = True, cu_seqlens: Any = None,
) -> State:  # fmt: skip
    """`linattn.initial_state` as JAX's arrays.

    Raises
    ------
    TypeError
        If an operand is not of real numbers, there are more of them than the operator has, or it
        takes no such map.
    ValueError
        If shapes do not match, or ``operator``, ``feature_map`` or ``cu_seqlens`` is wrong.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.ones((2, 4))
    >>> linattn.jax.initial_state(x, x, x, operator="step").s.shape
    (2, 4, 4)
    """
    return _recurrence.initial_state(
        (q, k, v, *others), operator, feature_map, normalize, cu_seqlens
    )


@refuses_masks
@like(linattn.delta, _JAX)
def delta(
    q: Any, k: Any, v: Any, beta: Any, *, scale: float = 1.0, feature_map: Any = "identity",
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.delta` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> k = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    >>> linattn.jax.delta(k, k, jnp.array([[3.0], [5.0]]), jnp.array([1.0, 0.5]))
    Array([[3.],
           [4.]], dtype=float32)
    """
    return _forward(
        axis_name, DELTA,
        {"q": q, "k": k, "v": v, "beta": beta}, scale=scale, feature_map=feature_map,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


@like(linattn.delta_step, _JAX)
def delta_step(
    q: Any, k: Any, v: Any, beta: Any, state: State, *, scale: float = 1.0,
    feature_map: Any = "identity",
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.delta_step`, one token of `delta`.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> state = linattn.jax.State(jnp.array([[3.0], [0.0]]))
    >>> k = jnp.array([1.0, 0.0])
    >>> o, state = linattn.jax.delta_step(k, k, jnp.array([5.0]), jnp.array(0.5), state)
    >>> o
    Array([4.], dtype=float32)
    """
    return _recurrence.step(
        DELTA, {"q": q, "k": k, "v": v, "beta": beta}, state, scale=scale,
        feature_map=feature_map,
    )  # fmt: skip


@refuses_masks
@like(linattn.gated, _JAX)
def gated(
    q: Any, k: Any, v: Any, g: Any, *, scale: float = 1.0, feature_map: Any = "identity",
    bonus: Any = None, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.gated` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.ones((3, 1))
    >>> linattn.jax.gated(x, x, x, jnp.array([0.0, 0.0, -jnp.inf]))  # the last forgets all
    Array([[1.],
           [2.],
           [1.]], dtype=float32)
    """
    return _forward(
        axis_name, GATED,
        {"q": q, "k": k, "v": v, "g": g, "bonus": bonus}, scale=scale,
        feature_map=feature_map, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


@like(linattn.gated_step, _JAX)
def gated_step(
    q: Any, k: Any, v: Any, g: Any, state: State, *, scale: float = 1.0,
    feature_map: Any = "identity", bonus: Any = None,
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.gated_step`, one token of `gated`.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> state, k = linattn.jax.State(jnp.full((2, 1), 8.0)), jnp.array([1.0, 0.0])
    >>> o, state = linattn.jax.gated_step(k, k, jnp.array([4.0]), jnp.log(0.5), state)
    >>> state.s
    Array([[8.],
           [4.]], dtype=float32)
    """
    return _recurrence.step(
        GATED, {"q": q, "k": k, "v": v, "g": g, "bonus": bonus}, state, scale=scale,
        feature_map=feature_map,
    )  # fmt: skip


@refuses_masks
@like(linattn.gated_delta, _JAX)
def gated_delta(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float = 1.0,
    feature_map: Any = "identity", erase: Any = None, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: State | None = None, return_state: bool = False,
    axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.gated_delta` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> k, v = jnp.array([[1.0, 0.0], [1.0, 0.0]]), jnp.array([[4.0], [6.0]])
    >>> half = jnp.array([1.0, 0.5])
    >>> linattn.jax.gated_delta(k, k, v, jnp.log(half), half)
    Array([[4.],
           [4.]], dtype=float32)
    """
    return _forward(
        axis_name, GATED_DELTA,
        {"q": q, "k": k, "v": v, "g": g, "beta": beta, "erase": erase}, scale=scale,
        feature_map=feature_map, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


@like(linattn.gated_delta_step, _JAX)
def gated_delta_step(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: State, *, scale: float = 1.0,
    feature_map: Any = "identity", erase: Any = None,
) -> tuple[Any, State]:  # fmt: skip
    """`linattn.gated_delta_step`, one token of `gated_delta`.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> state, k = linattn.jax.State(jnp.array([[4.0], [0.0]])), jnp.array([1.0, 0.0])
    >>> half = jnp.array(0.5)
    >>> o, state = linattn.jax.gated_delta_step(k, k, jnp.array([6.0]), jnp.log(half), half, state)
    >>> o
    Array([4.], dtype=float32)
    """
    return _recurrence.step(
        GATED_DELTA, {"q": q, "k": k, "v": v, "g": g, "beta": beta, "erase": erase}, state,
        scale=scale, feature_map=feature_map,
    )  # fmt: skip


@refuses_masks
@like(linattn.dplr, _JAX)
def dplr(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, *, scale: float = 1.0,
    key_lengths: Any = None, cu_seqlens: Any = None, initial_state: State | None = None,
    return_state: bool = False, axis_name: str | None = None,
) -> Any:  # fmt: skip
    """`linattn.dplr` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> k, v = jnp.array([[1.0, 0.0], [1.0, 0.0]]), jnp.array([[4.0], [6.0]])
    >>> linattn.jax.dplr(k, k, v, -k, k, jnp.zeros(2))  # what is removed is replaced
    Array([[4.],
           [6.]], dtype=float32)
    """
    return _forward(
        axis_name, DPLR,
        {"q": q, "k": k, "v": v, "a": a, "b": b, "g": g}, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


@like(linattn.dplr_step, _JAX)
def dplr_step(
    q: Any, k: Any, v: Any, a: Any, b: Any, g: Any, state: State, *, scale: float = 1.0
) -> tuple[Any, State]:
    """`linattn.dplr_step`, one token of `dplr`.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> state, k = linattn.jax.State(jnp.array([[4.0], [0.0]])), jnp.array([1.0, 0.0])
    >>> o, state = linattn.jax.dplr_step(k, k, jnp.array([6.0]), -k, k, jnp.array(0.0), state)
    >>> o
    Array([6.], dtype=float32)
    """
    return _recurrence.step(
        DPLR, {"q": q, "k": k, "v": v, "a": a, "b": b, "g": g}, state, scale=scale
    )


@refuses_masks
@like(linattn.causal_conv1d, _JAX)
def causal_conv1d(
    x: Any, weight: Any, bias: Any = None, *, activation: str | None = None,
    cu_seqlens: Any = None, initial_state: Any = None, return_state: bool = False,
) -> Any:  # fmt: skip
    """`linattn.causal_conv1d` on JAX's arrays x (..., n, c), weight (c, w).

    Raises
    ------
    TypeError
        If an operand is complex, or ``activation`` is no string.
    ValueError
        If shapes do not match, or ``activation`` is unknown, or ``cu_seqlens`` out of range.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.array([[1.0], [2.0], [4.0]])
    >>> linattn.jax.causal_conv1d(x, jnp.array([[0.5, 1.0]])).T
    Array([[1. , 2.5, 5. ]], dtype=float32)
    """
    o, state = _functions.causal_conv1d(x, weight, bias, activation, cu_seqlens, initial_state)
    return (o, state) if return_state else o


@like(linattn.causal_conv1d_step, _JAX)
def causal_conv1d_step(
    x: Any, weight: Any, state: Any, bias: Any = None, *, activation: str | None = None
) -> tuple[Any, Any]:
    """`linattn.causal_conv1d_step`, one token of `causal_conv1d`.

    Raises
    ------
    TypeError
        If an operand is complex, or ``activation`` is no string.
    ValueError
        If shapes do not match, or ``activation`` is unknown.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> o, state = linattn.jax.causal_conv1d_step(
    ...     jnp.array([8.0]), jnp.array([[0.5, 1.0]]), jnp.array([[4.0]])
    ... )
    >>> o, state
    (Array([10.], dtype=float32), Array([[8.]], dtype=float32))
    """
    return _functions.causal_conv1d_step(x, weight, state, bias, activation)


@refuses_masks
@like(linattn.softmax_attention, _SCALED)
def softmax_attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None
) -> Any:
    """`linattn.softmax_attention` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.eye(2)
    >>> linattn.jax.softmax_attention(x, x, x, scale=0.0)
    Array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    return _functions.softmax_attention(q, k, v, causal, scale)


@refuses_masks
@like(linattn.linformer, _SCALED)
def linformer(q: Any, k: Any, v: Any, E: Any, F: Any, *, scale: float | None = None) -> Any:
    """`linattn.linformer` on JAX's arrays.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x, E = jnp.ones((6, 2)), jnp.full((6, 3), 1 / 6)
    >>> linattn.jax.linformer(x, x, x, E, E).shape
    (6, 2)
    """
    return _functions.linformer(q, k, v, E, F, scale)


@like(linattn.log_decay, _JAX)
def log_decay(x: Any, A_log: Any, dt_bias: Any, *, lower_bound: float | None = None) -> Any:
    """`linattn.log_decay` on JAX's arrays, by its own operations.

    Raises
    ------
    TypeError
        If an operand is not of numbers.
    ValueError
        If shapes do not broadcast.

    Examples
    --------
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.array([-20.0, 0.0, 20.0])
    >>> linattn.jax.log_decay(x, 0.0, 0.0, lower_bound=-5).round(3)
    Array([-0. , -2.5, -5. ], dtype=float32)
    """
    return _functions.log_decay(x, A_log, dt_bias, lower_bound)
