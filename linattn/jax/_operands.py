"""What recurrences of JAX have in common: operands by name, their shapes, packed sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._call.recurrence import Recurrence
from .._core.layout import Call
from . import _traced_checks
from ._arrays import aligned, promoted


def promoted_of(name: str, r: Recurrence, operands: Sequence[Any]) -> dict[str, Any]:
    """The operands that are given, by name, as arrays in their dtypes.

    The last ones may be missing where a state alone is asked for.
    """
    given = {row.name: x for row, x in zip(r.operands, operands, strict=False)}
    wide = [row.name for row in r.operands if row.state_dtype]
    found = promoted(name, given, wide, complex_too=r.layout.complex_too)
    arrays = zip(given, found, strict=True)
    return {key: x for key, x in arrays if x is not None}


def dtype_of(arrays: dict[str, Any]) -> Any:
    """That of the first operand, and of the output."""
    return next(iter(arrays.values())).dtype


def keys_of(r: Recurrence, arrays: dict[str, Any]) -> Any:
    """The number of keys: of all tokens, but for queries that see every key."""
    letter = "s" if r.cross else "n"
    row = next(row for row in r.operands if row.dims[0] == letter and len(row.dims) == 2)
    return arrays[row.name].shape[-2]


def read_of(name: str, r: Recurrence, arrays: dict[str, Any], tokens: bool = True) -> Call:
    """The NumPy package's reading of the operands' shapes: of all tokens, or of one."""
    given = [_traced_checks.stand_in(arrays.get(row.name)) for row in r.operands]
    return r.layout.read(name, given, tokens=tokens)


def sequences_of(name: str, n: int, key_lengths: Any, cu_seqlens: Any) -> tuple[Any, ...]:
    """Where sequences begin and end, and how many keys they have."""
    bounds = _traced_checks.cu_seqlens(name, cu_seqlens, n)
    begin, end = bounds[:-1], bounds[1:]
    keys = end - begin
    if key_lengths is not None:
        last, first, keys = aligned(key_lengths[..., None], begin, keys)
        keys = jnp.clip(last - first, 0, keys)
    return begin, end, keys
