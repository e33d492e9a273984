"""The state before the first token, as arrays, for steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks
from .._states.state_arrays import State, checked_bounds
from ..feature_maps import PositiveRandomFeatures
from ..feature_maps._feature_map import Fused
from ..feature_maps._names import map_of
from .registry import RECURRENCES

if TYPE_CHECKING:
    from .._call.recurrence import Recurrence
    from .._core.layout import Call
    from .._types import ArrayLike, Bool, Map, Shape

NAME = "initial_state"


def initial_state(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None = None,
    *others: ArrayLike,
    operator: str = "causal",
    feature_map: Map = "elu",
    normalize: Bool = True,
    cu_seqlens: ArrayLike | None = None,
) -> State:
    """The state before the first token: zeros of the shapes and dtype that an operator takes.

    Parameters
    ----------
    q, k, v : array_like, shape (..., n, d), (..., n, d) and (..., n, m)
        The first operands of the operator; of a step, one token: (..., d), (..., d) and (..., m).
        Only their shapes and dtypes count.  For `linear_scan` they are a and x, for
        `selective_scan` x, dt and A, for `wkv` k, v and w, for `slstm` x and R, for
        `causal_conv1d` x and weight.
    *others : array_like
        The operands that follow, in the operator's order, such as beta of `delta`.  You can leave
        them out if they add no leading axes and no wider dtype.
    operator : str, default 'causal'
        The name of the function that takes the operands: a recurrence, such as ``'gated'``, or
        its step, ``'gated_step'``.
    feature_map : str or FeatureMap, default 'elu'
        The operator's map.  Fused maps have ``d`` features, so you need to pass only ``'dpfp'``
        and objects.
    normalize : bool, default True
        As for `causal`, `mlstm` and their steps; the other operators do not take it.
    cu_seqlens : array_like of int, shape (sequences + 1,), optional
        The bounds of packed sequences, each of which has a state.

    Returns
    -------
    State
        ``s`` (..., f, m) and, with a normaliser, ``z`` (..., f); for packed sequences with an
        axis of sequences before these axes.  `momentum_delta` has ``z`` (..., d, m).  `wkv`,
        `mlstm`, and with a normaliser `linattn.feature_maps.PositiveRandomFeatures` also have
        ``log_scale``, -inf for no key, but 0 for `mlstm`. `slstm` has a `linattn.SLSTMState`, and
        the state of `causal_conv1d` is an array. The arrays are newly allocated, have all leading
        axes, as in-place steps require, and the dtype of the computation: float32 for 16-bit
        operands.

    Raises
    ------
    TypeError
        If an operand does not hold real numbers (for `linear_scan` real or complex ones), there
        are more operands than the operator has, the operator does not take the map, or
        ``operator``, ``feature_map`` or ``normalize`` has another type.
    ValueError
        If shapes do not match, or ``operator``, ``feature_map`` or ``cu_seqlens`` is wrong.

    Notes
    -----
    f (m + 1) numbers per head.  Operators over whole sequences do not need it: they start from
    such a state by default.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 16-17.  The papers of the other
    operators start from zeros as well.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> q, k, v = np.ones((3, 10, 2, 4), np.float32)  # tokens, heads, width
    >>> state = linattn.initial_state(q[0], k[0], v[0], operator="step")
    >>> for token in zip(q, k, v):
    ...     o, state = linattn.step(*token, state, in_place=True)
    >>> state.s.shape, state.z[0]
    ((2, 4, 4), array([20., 20., 20., 20.], dtype=float32))
    """
    phi = map_of(NAME, feature_map)
    normalize = checks.flag(NAME, "normalize", normalize)
    operands = given(q, k, v, *others)
    r, call, lead = read(operands, operator, None if isinstance(phi, Fused) else phi, cu_seqlens)
    cores = r.cores(
        call.fit.sizes, normalize, *lead, features=phi.features,
        rescaled=isinstance(phi, PositiveRandomFeatures),
    )  # fmt: skip
    dtype = call.state_dtype
    state: State = r.public(r.start(lambda shape, value: np.full(shape, value, dtype), cores))
    return state


def given(*operands: Any) -> tuple[Any, ...]:
    """The operands without trailing None: the state of a linear scan follows from two operands."""
    while operands and operands[-1] is None:
        operands = operands[:-1]
    return operands


def recurrence_of(operator: str, count: int) -> tuple[Recurrence, bool]:
    """The recurrence that has the operator, and whether it takes all tokens, not one.

    ``count`` is the number of operands.
    """
    scans = (r for r in RECURRENCES.values() if not r.cross)
    known = {r.names[x]: r for r in scans for x in ("forward", "step")}
    recurrence = known[checks.choice(NAME, "operator", operator, known)]
    leading = recurrence.layout.leading
    others = count - leading
    if others < 0:
        names = ", ".join(x.name for x in recurrence.operands[:leading])
        raise TypeError(f"{NAME}: {count} operands; expected {names} at least, for {operator}")
    if others > len(recurrence.extras):
        names = ", ".join(extra.name for extra in recurrence.extras) or "none"
        last = recurrence.operands[leading - 1].name
        raise TypeError(
            f"{NAME}: {others} operands after {last}; expected those of {operator}: {names}"
        )
    return recurrence, operator == recurrence.name


def read(
    operands: tuple[Any, ...], operator: str, unmapped: Any, cu_seqlens: Any
) -> tuple[Recurrence, Call, Shape]:
    """The recurrence, its operands, checked, and the leading axes of a state.

    ``unmapped`` is the map if it is not fused, which operators without maps refuse.
    """
    recurrence, whole = recurrence_of(operator, len(operands))
    if cu_seqlens is not None and not whole:
        raise TypeError(
            f"{NAME}: cu_seqlens is given; expected None, as {operator} takes one token"
        )
    if not recurrence.mapped and unmapped is not None:
        raise TypeError(
            f"{NAME}: feature_map is {unmapped!r}; expected the default, as {operator} has no map"
        )
    call = recurrence.read(NAME, operands, tokens=whole)
    if cu_seqlens is None:
        return recurrence, call, call.batch
    bounds = checked_bounds(NAME, cu_seqlens, call.fit.sizes["n"])
    return recurrence, call, (*call.batch, len(bounds) - 1)
