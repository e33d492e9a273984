"""``block`` of JAX's arrays: a call of twice as many tokens, as in `_call.whole_blocks`.

It is made of functions of JAX, so that gradients pass through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._call.recurrence import Recurrence
from .._call.whole_blocks import Places, checked, places, silent_key
from .._core.dtypes import work_dtype
from . import _recurrence, _traced_checks
from ._recurrence import dtype_of, keys_of, map_of, promoted_of, read_of

#: As good as any longer one, and its ends are integers of 32 bits.
_LONGEST = 2**30


def forward(
    r: Recurrence, operands: Sequence[Any], block: Any, *, feature_map: Any, normalize: Any = False,
    eps: Any = 0.0, key_lengths: Any = None, cu_seqlens: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """The output and, with `return_state`, the state after the last token."""
    name = r.names["forward"]
    block = checked(r.operands, name, operands, block)
    if block == 1:
        return _recurrence.forward(
            r, operands, feature_map=feature_map, normalize=normalize, eps=eps,
            key_lengths=key_lengths, cu_seqlens=cu_seqlens, **options,
        )  # fmt: skip
    arrays = promoted_of(name, r, operands)
    phi = map_of(name, feature_map, normalize)
    call = read_of(name, r, arrays)
    dtype, n = dtype_of(arrays), keys_of(r, arrays)
    first, last, tokens = 0, n, jnp.arange(n)
    if cu_seqlens is not None:
        bounds = _traced_checks.cu_seqlens(name, cu_seqlens, n)
        after = jnp.searchsorted(bounds, tokens, side="right")
        first, last = bounds[after - 1], bounds[after]
        options["cu_seqlens"] = 2 * bounds
    at = places(tokens, first, last, min(block, _LONGEST))
    if key_lengths is not None:
        key_lengths = _traced_checks.key_lengths(name, key_lengths, n, call.batch)
        # A place by the number of tokens that have written.
        options["key_lengths"] = jnp.pad(at.write + 1, (1, 0))[key_lengths]
    if not isinstance(phi, str):
        _recurrence.map_keys(name, arrays, phi, key_lengths)
        phi = "identity"
    if isinstance(eps, (int, float)) and eps >= 0:  # 0 would make gradients of other tokens NaN
        eps = max(eps, float(jnp.finfo(work_dtype(dtype)).tiny))
    result = _recurrence.forward(
        r, _spread(r, arrays, at, silent_key(phi)), feature_map=phi, normalize=normalize, eps=eps,
        **options,
    )  # fmt: skip
    o, *state = result if isinstance(result, tuple) else (result,)
    o = o[..., at.read, :].astype(dtype)
    return (o, *state) if state else o


def _spread(r: Recurrence, arrays: dict[str, Any], at: Places, fill: float) -> list[Any]:
    """The operands at their places: q is what reads."""
    given = [arrays.get(row.name) for row in r.operands]
    spread = []
    for i, (x, rank) in enumerate(zip(given, r.layout.own_axes(given), strict=True)):
        if x is not None:
            axis = x.ndim - rank
            shape = *x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :]
            where = (*(slice(None),) * axis, at.write if i else at.read)
            x = jnp.full(shape, fill if i == 1 else 0.0, x.dtype).at[where].set(x)
        spread.append(x)
    return spread
