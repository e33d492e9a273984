"""A sequence over the devices of a mesh axis, within `jax.shard_map`.

Each device computes the effect of its tokens on the state, ``s -> A s + b``; one all-gather sends
these effects to all, and each device then runs from its own state.  JAX differentiates all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._blocks import block_scan
from .._call import exact
from .._call.recurrence import Recurrence
from .._core.dtypes import work_dtype
from .._states.state_arrays import State
from . import _recurrence, _traced_checks
from ._recurrence import dtype_of, promoted_of


def forward(
    r: Recurrence, operands: tuple[Any, ...], axis_name: str, *, initial_state: State | None = None,
    return_state: bool = False, key_lengths: Any = None, cu_seqlens: Any = None,
    block: int | None = None, **options: Any,
) -> Any:  # fmt: skip
    """`_recurrence.forward`, for this device's tokens."""
    exact.refuse(r.name, return_state, initial_state, "with axis_name")
    if any(x is not None for x in (key_lengths, cu_seqlens, block)):
        raise ValueError(
            f"{r.name}: key_lengths, cu_seqlens or block is given; expected None with axis_name"
        )

    def end_of(arrays: Sequence[Any], start: State | None) -> State:
        state: State = _recurrence.forward(
            r, arrays, initial_state=start, return_state=True, **options
        )[1]
        return state

    arrays = [None if x is None else jnp.asarray(x) for x in operands]
    mine = _effect(r, arrays, end_of, options)
    everyone = [jax.lax.all_gather(x, axis_name) if _is_array(x) else x for x in mine]
    state = _start(r, mine, initial_state)
    here, size = jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name)
    start = last = state
    for i in range(size)[:: -1 if options.get("reverse") else 1]:
        start = jax.tree.map(lambda x, y, i=i: jnp.where(here == i, y, x), start, last)
        element = type(mine)(*(x[i] if _is_array(x) else x for x in everyone))
        last = element.after(last)
    o = _recurrence.forward(r, operands, initial_state=start, **options)
    return (o, last) if return_state else o


def _effect(r: Recurrence, arrays: list[Any], end_of: Callable[..., State], options: Any) -> Any:
    """The element of this device's tokens."""
    dtype = work_dtype(dtype_of(promoted_of(r.name, r, arrays)))
    normalize = options.get("normalize", True)
    return block_scan.effect(r, tuple(arrays), end_of, dtype, xp=jnp, normalize=normalize)


def _start(r: Recurrence, mine: Any, initial_state: State | None) -> State:
    """The state before all tokens, with all leading axes."""
    arrays = {field: getattr(mine, field, None) for field in State._fields}
    shapes = {field: x.shape for field, x in arrays.items() if x is not None}
    dtype, lead = mine.s.dtype, mine.s.ndim - len(r.layout.state)
    if initial_state is None:
        return State(**r.start(partial(jnp.full, dtype=dtype), shapes))
    cores, batch = {field: x[lead:] for field, x in shapes.items()}, shapes["s"][:lead]
    fields = _traced_checks.state(r.name, "initial_state", initial_state, cores, batch, dtype)
    full = zip(shapes, fields, strict=True)
    return State(**{field: jnp.broadcast_to(x, shapes[field]) for field, x in full})


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape")
