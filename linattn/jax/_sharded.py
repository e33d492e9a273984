"""A sequence over the devices of a mesh axis, within `jax.shard_map`.

Each device computes the effect of its tokens on the state, ``s -> A s + b``; one all-gather sends
these effects to all, and each device then runs from its own state.  JAX differentiates all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import _block_scan
from .._operator import Recurrence
from .._state import State
from . import _check, _recurrence


def forward(
    r: Recurrence, operands: tuple[Any, ...], axis_name: str, *, initial_state: State | None = None,
    return_state: bool = False, key_lengths: Any = None, cu_seqlens: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`_recurrence.forward` for this device's tokens."""
    if key_lengths is not None or cu_seqlens is not None:
        raise ValueError(
            f"{r.name}: key_lengths or cu_seqlens is given; expected None with axis_name"
        )
    if options.get("reverse"):
        raise ValueError(f"{r.name}: reverse is True; expected False with axis_name")

    def end_of(arrays: Sequence[Any], start: State | None) -> State:
        state: State = _recurrence.forward(
            r, arrays, initial_state=start, return_state=True, **options
        )[1]
        return state

    arrays = [None if x is None else jnp.asarray(x) for x in operands]
    mine = _block_scan.effect(r, arrays, end_of, jnp)
    everyone = jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name), mine[:3])
    here = jax.lax.axis_index(axis_name)
    state = State(*(None if x is None else jnp.zeros_like(x) for x in mine[1:3]))
    if initial_state is not None:
        lead = mine.s.ndim - len(r.layout.state)
        fields = _check.state(
            r.name, "initial_state", initial_state, mine.s.shape[:lead], mine.s.shape[lead:],
            mine.s.dtype, mine.z is not None,
        )  # fmt: skip
        state = jax.tree.map(lambda x, y: jnp.broadcast_to(y, x.shape), state, State(*fields))
    start = last = state
    for i in range(jax.lax.axis_size(axis_name)):
        a, s, z = jax.tree.map(lambda x, i=i: x[i], everyone)
        start = jax.tree.map(lambda x, y, i=i: jnp.where(here == i, y, x), start, last)
        last = _block_scan.after(last, _block_scan.Element(a, s, z, mine.matrix))
    o = _recurrence.forward(r, operands, initial_state=start, **options)
    return (o, last) if return_state else o
