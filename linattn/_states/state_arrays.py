"""The recurrent state and the bounds of sequences: their checks, and operands of gufuncs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core import checks
from .._core.dtypes import takes_half
from .._core.summaries import shown, shown_fields

if TYPE_CHECKING:
    from .._types import Array, ArrayLike, Cores, DType, Shape


class State(NamedTuple):
    """The state of a linear attention layer after some tokens.

    Parameters
    ----------
    s : ndarray, shape (..., f, m)
        ``sum_j phi(k_j) v_j^T``; (..., r, f, m) for r packed sequences.
    z : ndarray, shape (..., f), or None
        ``sum_j phi(k_j)``; None without a normaliser.  For `linattn.momentum_delta` the momentum,
        in the shape of s.
    log_scale : ndarray, shape as z, or (...) for `linattn.mlstm`, or None
        For `linattn.mlstm` and `linattn.wkv`: the logarithm of the scale of s and z, which are the
        sums times e^-log_scale.  For maps that rescale as they go: the logarithm of the largest
        feature of any key so far, from which the scale follows; None means plain sums there.  None
        for other operators.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((3, 2))
    >>> o, state = linattn.causal(x, x, x, return_state=True)
    >>> state.z
    array([6., 6.])
    >>> state
    State(s=<2 x 2 float64>, z=<2 float64>, log_scale=None)
    """

    s: Any  # an array, or a tensor in linattn.torch
    z: Any = None  # the same, or None: it depends on the call's options
    log_scale: Any = None

    def __repr__(self) -> str:
        return shown_fields(self)

    @property
    def lost(self) -> Any:
        """What rounding took from s and z: None but for an `ExactState`."""
        return None


class ExactState(State):
    """A `State` that also carries what rounding took from its sums (``return_state="exact"``).

    A sequence that is cut at multiples of 64 tokens and continues from such states has the bits of
    the uncut one.  As a tuple it is its `State`: a copy of its fields carries nothing.

    Parameters
    ----------
    s, z, log_scale : ndarray, or None
        Those of `State`.
    lost : ndarray, shape (..., f, m), or (..., f, m + 1) with a normaliser
        What the additions to s, and in the last column those to z, have lost to rounding.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((128, 2), np.float32)
    >>> o, state = linattn.causal(x[:64], x[:64], x[:64], return_state="exact")
    >>> state
    ExactState(s=<2 x 2 float32>, z=<2 float32>, log_scale=None, lost=<2 x 3 float32>)
    >>> rest = linattn.causal(x[64:], x[64:], x[64:], initial_state=state)
    >>> whole, _ = linattn.causal(x, x, x, return_state="exact")
    >>> np.array_equal(whole, np.concatenate((o, rest)))
    True
    """

    _lost: Any

    def __new__(cls, s: Any, z: Any = None, log_scale: Any = None, *, lost: Any) -> ExactState:
        """The state of these arrays."""
        state = super().__new__(cls, s, z, log_scale)
        state._lost = lost
        return state

    def __reduce__(self) -> Any:
        return exact_state, (tuple(self), self._lost)

    def __repr__(self) -> str:
        return f"{shown_fields(self)[:-1]}, lost={shown(self._lost)})"

    @property
    def lost(self) -> Any:
        """What rounding took from s and z."""
        return self._lost

    @property
    def _asdict(self) -> Any:
        """No method of the class, which PyTorch would otherwise take for any named tuple."""
        return super()._asdict

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> State:  # type: ignore[override]
        """The `State` of these arrays, from which nothing is known to be lost."""
        return State(*iterable)


def exact_state(state: tuple[Any, ...], lost: Any) -> ExactState:
    """The state of these fields, as pickles make it."""
    return ExactState(*state, lost=lost)


class SLSTMState(NamedTuple):
    """The state of `linattn.slstm` after some tokens.

    Parameters
    ----------
    h, c, n, m : ndarray, shape (..., heads, d)
        The output, the cell and its normaliser, both times e^-m, and the stabiliser, the largest
        exponent so far; (..., r, heads, d) for r packed sequences.  Where n is 0 nothing has been
        written, whatever c and m are.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x, R, b = np.zeros((3, 4, 1, 2)), np.zeros((4, 1, 2, 2)), np.zeros((4, 1, 2))
    >>> h, state = linattn.slstm(x, R, b, return_state=True)
    >>> state
    SLSTMState(h=<1 x 2 float64>, c=<1 x 2 float64>, n=<1 x 2 float64>, m=<1 x 2 float64>)
    """

    h: Any  # an array, or a tensor in linattn.torch
    c: Any
    n: Any
    m: Any

    def __repr__(self) -> str:
        return shown_fields(self)


class Sequences(NamedTuple):
    """Where sequences begin and end along n, (r,), and the number of keys of each, (..., r).

    Ellipsis stands for all of n.
    """

    begin: Any
    end: Any
    keys: Any
    packed: bool
    r: int

    @property
    def indices(self) -> tuple[Any, Any, Any]:
        """The operands begin, end and keys."""
        return self[:3]


def sequences(
    function: str, n: int, batch: Shape, cu_seqlens: ArrayLike | None, key_lengths: ArrayLike | None
) -> Sequences:
    """Read ``cu_seqlens`` and ``key_lengths``; without them there is one sequence."""
    keys: Any = ...
    begin: Any = ...
    end: Any = ...
    r = 1
    if cu_seqlens is not None:
        bounds = checked_bounds(function, cu_seqlens, n)
        begin, end, r = bounds[:-1], bounds[1:], len(bounds) - 1
    if key_lengths is not None:
        lengths = checked_lengths(function, key_lengths, n, batch)
        keys = lengths[..., None]
        if cu_seqlens is not None:
            keys = np.clip(keys - begin, 0, end - begin)
    return Sequences(begin, end, keys, cu_seqlens is not None, r)


def no_state(function: str, name: str, x: Any, expected: str) -> TypeError:
    """The error for what is no state; before the first token a step needs one as well."""
    if x is None:
        how = ", from linattn.initial_state before the first token"
        return TypeError(f"{function}: {name} is None; expected a {expected}{how}")
    return TypeError(f"{function}: {name} is a {type(x).__name__}; expected a {expected}")


def _why_none(function: str, cores: Cores) -> str:
    """Why a state has no z, or no log_scale."""
    if not checks.has(function, "normalizer"):
        return f", as {function} has no normaliser"
    return " for this map" if "z" in cores else ", as normalize is False"


def named(
    function: str, name: str, state: Any, cores: Cores, *, one_array: bool = False,
    holder: type[Any] = State, pooled: bool = False, any_scale: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The arrays of a state by the names of messages, in the order of their cores.

    Options of a call say which there are, but not which a pool was made with.  With ``any_scale``,
    log_scale may be None.
    """
    if one_array:
        return {name: state}
    if holder is not State:
        return _named_alike(function, name, state, holder)
    scaled = "log_scale" in cores
    try:
        if isinstance(state, np.ndarray):
            raise TypeError
        s, z, *rest = state
        (log_scale,) = rest or (None,)
    except (TypeError, ValueError):
        expected = f"linattn.State(s, z{', log_scale' if scaled and not pooled else ''})"
        raise no_state(function, name, state, expected) from None
    found = {}
    for field, x in zip(State._fields, (s, z, log_scale), strict=True):
        if field not in cores:
            if x is not None:
                why = "" if pooled else _why_none(function, cores)
                raise ValueError(f"{function}: {name}.{field} is given; expected None{why}")
        elif x is None and any_scale and field == "log_scale":
            pass
        elif x is None and (pooled or (field == "z" and not scaled)):
            own = len(cores[field]) == len(cores["s"])  # no normaliser
            why = "" if pooled or own else ", as normalize is True"
            raise ValueError(f"{function}: {name}.{field} is None; expected an array{why}")
        else:
            found[f"{name}.{field}"] = _without_axes(x) if isinstance(x, np.generic) else x
    return found


def _without_axes(x: np.generic) -> Array:
    """A scalar, which NumPy gives for an item of an array: of log_scale, say.

    Nothing can be written to it.
    """
    array = np.asarray(x)
    array.flags.writeable = False
    return array


def _named_alike(function: str, name: str, state: Any, holder: type[Any]) -> dict[str, Any]:
    """The same of a state that always has all of its fields."""
    fields = holder._fields
    if not isinstance(state, tuple) or len(state) != len(fields):
        raise no_state(function, name, state, f"linattn.{holder.__name__}({', '.join(fields)})")
    return {f"{name}.{field}": x for field, x in zip(fields, state, strict=True)}


def checked(
    function: str, name: str, state: Any, cores: Cores, lead: Shape, dtype: DType, *,
    one_array: bool = False, holder: type[Any] = State, halves: bool = False,
) -> dict[str, Array]:  # fmt: skip
    """The arrays (..., *core) of a state, whose other axes broadcast to ``lead``, by the names of
    messages."""
    found = named(function, name, state, cores, one_array=one_array, holder=holder)
    for (field, x), core in zip(found.items(), cores.values(), strict=True):
        checked_field(function, field, x, lead, core, dtype, halves=halves)
    return found


def checked_field(
    function: str, name: str, x: Any, lead: Shape, core: Shape, dtype: DType, *,
    halves: bool = False,
) -> None:  # fmt: skip
    """Check a field of a state: an array (..., *core) whose other axes broadcast to ``lead``.

    With ``halves`` it may have 16 bits where ``dtype``, that of the computation, is float32.
    """
    if type(x) is np.ndarray and x.dtype == dtype and x.shape == (*lead, *core):
        return
    checks.plain_array(function, name, x)
    checked_dtype(function, name, x, dtype, halves=halves)
    inner = x.ndim - len(core)
    if inner < 0 or x.shape[inner:] != core or not checks.broadcasts_to(x.shape[:inner], lead):
        raise ValueError(f"{function}: {name} has shape {x.shape}; expected {(*lead, *core)}")


def checked_dtype(function: str, name: str, x: Array, dtype: DType, *, halves: bool) -> None:
    """Check the dtype of a field of a state."""
    if x.dtype != dtype and not (halves and takes_half(x.dtype, dtype)):
        more = ", float16 or bfloat16" if halves and dtype == np.float32 else ""
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected {dtype}{more}")


def updated(
    function: str, fields: Mapping[str, Array], batch: Shape = (), cores: Iterable[Shape] = ()
) -> None:
    """Check fields to write into: each must be writeable, in memory of its own.

    If cores are given, each must have all leading axes.
    """
    for (name, x), core in zip(fields.items(), cores, strict=False):
        if x.shape != (*batch, *core):
            raise ValueError(
                f"{function}: {name} has shape {x.shape}; expected leading axes "
                f"{batch} to be updated in place"
            )
    for name, x in fields.items():
        checks.writeable(function, name, x)
    for (name, x), (other, y) in combinations(fields.items(), 2):
        if np.may_share_memory(x, y) and np.shares_memory(x, y):
            raise ValueError(
                f"{function}: {other} shares memory with {name}; expected memory of its own, as "
                "both are written"
            )


def checked_lengths(function: str, x: Any, limit: int, batch: Shape) -> Array:
    """``key_lengths``: integers from 0 to the number of keys that broadcast to the batch."""
    x = checks.integers(function, "key_lengths", x)
    if not checks.broadcasts_to(x.shape, batch):
        raise ValueError(
            f"{function}: key_lengths has shape {x.shape}; expected one that broadcasts to "
            f"the leading axes {batch}"
        )
    checks.in_range(function, "key_lengths", x, limit, "the number of keys")
    return x


def checked_bounds(function: str, x: Any, n: int) -> Array:
    """``cu_seqlens``: (sequences + 1,) integers from 0 to n that never decrease."""
    x = checks.integers(function, "cu_seqlens", x)
    if x.ndim != 1 or len(x) < 1:
        raise ValueError(f"{function}: cu_seqlens has shape {x.shape}; expected (sequences + 1,)")
    if x[0] != 0:
        raise ValueError(f"{function}: cu_seqlens begins with {x[0]}; expected 0")
    if x[-1] != n:
        raise ValueError(f"{function}: cu_seqlens ends with {x[-1]}; expected n = {n}")
    if (x[1:] < x[:-1]).any():
        i = int(np.argmax(x[1:] < x[:-1]))
        raise ValueError(
            f"{function}: cu_seqlens decreases from {x[i]} to {x[i + 1]} at position {i + 1}; "
            "expected no decrease"
        )
    return x
