"""A sequence over the devices of a mesh axis: what `shard_map` needs.

Each device computes what its stretch of tokens does to the state, ``s -> A s + b``; one all-gather
makes that known to all, and each runs from its own state.  JAX differentiates it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .. import _blocks
from .._operator import Recurrence
from .._state import State
from . import _recurrence


def forward(
    r: Recurrence, operands: dict[str, Any], axis_name: str, *, initial_state: State | None = None,
    return_state: bool = False, key_lengths: Any = None, cu_seqlens: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`_recurrence.forward` of this device's tokens."""
    if key_lengths is not None or cu_seqlens is not None:
        raise ValueError(
            f"{r.name}: key_lengths or cu_seqlens is given; expected None with axis_name"
        )
    _, end = _recurrence.forward(r, operands, return_state=True, **options)
    a = _transition(r, operands, end, options)
    everyone = jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name), (a, end))
    here = jax.lax.axis_index(axis_name)
    state = State(*(None if x is None else jnp.zeros_like(x) for x in end))
    if initial_state is not None:
        state = jax.tree.map(lambda x, y: x + jnp.asarray(y, x.dtype), state, initial_state)
    start = last = state
    for i in range(jax.lax.axis_size(axis_name)):
        a, end = jax.tree.map(lambda x, i=i: x[i], everyone)
        start = jax.tree.map(lambda x, y, i=i: jnp.where(here == i, y, x), start, last)
        last = _blocks.after(last, _blocks.Element(a, end.s, end.z))
    o = _recurrence.forward(r, operands, initial_state=start, **options)
    return (o, last) if return_state else o


def _transition(
    r: Recurrence, operands: dict[str, Any], end: State, options: dict[str, Any]
) -> Any:
    """A: nothing for sums, factors for gates, else what is left of the identity."""
    if not r.extras:
        return None
    if r.name == "gated":
        g = jnp.asarray(operands["g"], end.s.dtype)
        axes = max(jnp.ndim(operands[x]) for x in ("q", "k", "v"))
        g = g[..., None] if g.ndim < axes else g
        return jnp.exp(g.sum(-2))[..., None]
    f, v = end.s.shape[-2], jnp.asarray(operands["v"])
    beta = operands.get("beta")
    if beta is not None and jnp.ndim(beta) >= max(jnp.ndim(operands[x]) for x in ("q", "k", "v")):
        raise ValueError(
            f"{r.name}: beta has shape {jnp.shape(beta)}, one number a value channel; expected "
            "one a token with axis_name, as channels would have a transition each"
        )
    nothing = jnp.zeros((*v.shape[:-1], f), v.dtype)
    identity = State(jnp.eye(f, dtype=end.s.dtype))
    given = operands | {"v": nothing}
    return _recurrence.forward(r, given, initial_state=identity, return_state=True, **options)[1].s
