"""Names for type checkers: nothing else imports this."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._state import State
from .feature_maps import FeatureMap

__all__ = [
    "Array",
    "ArrayLike",
    "Bool",
    "CausalOptions",
    "DType",
    "Map",
    "RecurrenceOptions",
    "Shape",
    "State",
]

Array: TypeAlias = NDArray[Any]
Bool: TypeAlias = bool | np.bool_
DType: TypeAlias = np.dtype[Any]
Map: TypeAlias = str | FeatureMap
Shape: TypeAlias = tuple[int, ...]


class RecurrenceOptions(TypedDict, total=False):
    """What a recurrence over tokens takes, but ``return_state``."""

    scale: float
    feature_map: Map
    key_lengths: ArrayLike | None
    cu_seqlens: ArrayLike | None
    initial_state: State | None
    out: Array | None


class CausalOptions(RecurrenceOptions, total=False):
    """What one with a normaliser takes."""

    normalize: Bool
    eps: float
