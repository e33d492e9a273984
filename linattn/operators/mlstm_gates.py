"""The gates of mLSTM under the running maximum, and its numbers, as its gufuncs take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.gufuncs import internal_ufuncs, run

if TYPE_CHECKING:
    from .._states.state_arrays import Sequences
    from .._types import Array, DType


class Numbers(NamedTuple):
    scale: float
    eps: float
    normalize: float  #: 1.0 or 0.0


class Gates(NamedTuple):
    """What the gates are under the running maximum m."""

    g: Array  #: logarithm of what is left of the memory
    write: Array  #: what a token's key is multiplied by
    top: Array  #: m
    last: Array  #: m after the last token, (..., r)

    @classmethod
    def of(cls, i: Array, f: Array, packing: Sequences, start: Any, dtype: DType) -> Gates:
        inputs = i.astype(dtype, copy=False), f.astype(dtype, copy=False), *packing.indices, start
        return cls(*run(internal_ufuncs["mlstm_gates_state"], inputs))


def both(fields: Any) -> tuple[Any, Any]:
    """s and z, which is left out where there is none."""
    s, *z = fields
    return s, z[0] if z else ...
