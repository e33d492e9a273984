"""The recurrent state and the bounds of sequences: their checks, and operands of gufuncs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core import checks
from .._core.summaries import shown_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._types import Array, ArrayLike, DType, Shape


class State(NamedTuple):
    """The state of a linear attention layer after some tokens.

    Parameters
    ----------
    s : ndarray, shape (..., f, m)
        ``sum_j phi(k_j) v_j^T``; (..., r, f, m) for r packed sequences.
    z : ndarray, shape (..., f), or None
        ``sum_j phi(k_j)``; None without a normaliser.
    log_scale : ndarray, shape as z, or None
        Only for maps that rescale as they go: the logarithm of the largest feature of any key so
        far.  For these maps None means plain sums.

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


def operands(state: Iterable[Any], cores: State, packing: Sequences) -> tuple[Any, ...]:
    """The arrays of a state as gufuncs take them, with an axis r before their own ones."""
    return tuple([
        x if packing.packed else x[(..., None, *(slice(None),) * len(core))]
        for x, core in zip(state, cores, strict=True)
        if x is not None
    ])  # fmt: skip


def result(packing: Sequences, fields: Mapping[str, str], arrays: Iterable[Any]) -> State:
    """The state of a gufunc's outputs, without the axis r unless sequences are packed.

    ``fields`` has the letters of the axes of each.
    """
    return State(**{
        field: x if packing.packed else x.squeeze(-1 - len(letters))
        for (field, letters), x in zip(fields.items(), arrays, strict=True)
    })  # fmt: skip


def copy(state: Any) -> State:
    """A state with copies of its plain arrays."""
    return State(*(np.array(x) if type(x) is np.ndarray else x for x in state))


def fields(
    function: str, name: str, state: Any, expected: str = "linattn.State(s, z)"
) -> tuple[Any, Any, Any]:
    """The fields of a state; None for a log_scale that it leaves out."""
    try:
        if isinstance(state, np.ndarray):
            raise TypeError
        s, z, *rest = state
        (log_scale,) = rest or (None,)
    except (TypeError, ValueError):
        raise no_state(function, name, state, expected) from None
    return s, z, log_scale


def no_state(function: str, name: str, x: Any, expected: str) -> TypeError:
    """The error for what is no state; before the first token a step needs one as well."""
    if x is None:
        how = ", from linattn.initial_state before the first token"
        return TypeError(f"{function}: {name} is None; expected a {expected}{how}")
    return TypeError(f"{function}: {name} is a {type(x).__name__}; expected a {expected}")


def named(
    function: str, name: str, state: Any, cores: State, *, any_scale: bool = False
) -> dict[str, Any]:
    """The fields of a state by the names of messages; those without a core have to be None.

    With ``any_scale``, log_scale may be None as well.
    """
    found = {}
    for field, x, core in zip(State._fields, fields(function, name, state), cores, strict=True):
        if (x is None) is not (core is None) and not (
            any_scale and x is None and field == "log_scale"
        ):
            what, expected = ("None", "an array") if x is None else ("given", "None")
            raise ValueError(f"{function}: {name}.{field} is {what}; expected {expected}")
        if x is not None:
            found[f"{name}.{field}"] = x
    return found


def checked(function: str, name: str, state: Any, lead: Shape, cores: State, dtype: DType) -> State:
    """A state of arrays (..., *core), whose other axes broadcast to ``lead``.

    A core of None stands for a field that has to be None.
    """
    scaled = cores.log_scale is not None
    expected = f"linattn.State(s, z{', log_scale' if scaled else ''})"
    s, z, log_scale = fields(function, name, state, expected)
    if log_scale is not None and not scaled:
        raise ValueError(f"{function}: {name}.log_scale is given; expected None for this map")
    if z is None and cores.z is not None and not scaled:
        raise ValueError(f"{function}: {name}.z is None; expected an array, as normalize is True")
    if z is not None and cores.z is None:
        raise ValueError(f"{function}: {name}.z is given; expected None, as normalize is False")
    found = State(s, z, log_scale)
    for field, x, core in zip(State._fields, found, cores, strict=True):
        if core is not None:
            checked_field(function, f"{name}.{field}", x, lead, core, dtype)
    return found


def checked_field(function: str, name: str, x: Any, lead: Shape, core: Shape, dtype: DType) -> None:
    """Check a field of a state: an array (..., *core) whose other axes broadcast to ``lead``."""
    if type(x) is np.ndarray and x.dtype == dtype and x.shape == (*lead, *core):
        return
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a NumPy array")
    if x.dtype != dtype:
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected {dtype}")
    inner = x.ndim - len(core)
    if inner < 0 or x.shape[inner:] != core or not checks.broadcasts_to(x.shape[:inner], lead):
        raise ValueError(f"{function}: {name} has shape {x.shape}; expected {(*lead, *core)}")


def in_place(function: str, state: State, batch: Shape, cores: State) -> None:
    """Check that a state can be updated: it has all leading axes and can be written."""
    pairs = zip(State._fields, state, cores, strict=True)
    fields = {f"state.{name}": (x, len(core)) for name, x, core in pairs if core is not None}
    updated(function, fields, batch)


def spread(state: State, batch: Shape, cores: State) -> State:
    """Copies of a state's arrays, with all leading axes."""
    return State(*(
        x if core is None else np.array(np.broadcast_to(x, (*batch, *core)))
        for x, core in zip(state, cores, strict=True)
    ))  # fmt: skip


def updated(function: str, fields: Mapping[str, tuple[Array, int]], batch: Shape) -> None:
    """Check that fields, each with so many axes of its own, can be updated: they have all leading
    axes and can be written."""
    for name, (x, core) in fields.items():
        if x.shape[: x.ndim - core] != batch:
            raise ValueError(
                f"{function}: {name} has shape {x.shape}; expected leading axes "
                f"{batch} to be updated in place"
            )
    apart(function, {name: x for name, (x, _) in fields.items()})


def apart(function: str, fields: Mapping[str, Array]) -> None:
    """Check fields to write into: each must be writeable, in memory of its own."""
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
    if x.size and np.maximum.reduce(x.view(np.uintp), None) > limit:  # or negative
        raise ValueError(
            f"{function}: key_lengths has values from {x.min()} to {x.max()}; "
            f"expected 0 to {limit}, the number of keys"
        )
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
