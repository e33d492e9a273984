"""Names for type checkers; nothing of it is imported when the package runs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._state import State
from .feature_maps import FeatureMap

__all__ = [
    "Array",
    "ArrayLike",
    "CausalOptions",
    "DTypeLike",
    "DeltaOptions",
    "FeatureMap",
    "Map",
    "Shape",
    "State",
    "StateLike",
]

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Map: TypeAlias = Literal["identity", "relu", "elu", "softplus", "exp", "dpfp"] | str | FeatureMap
StateLike: TypeAlias = State | tuple[Array, ...]


class SequenceOptions(TypedDict, total=False):
    """What every recurrence over tokens takes."""

    scale: float
    feature_map: Map
    key_lengths: ArrayLike | None
    cu_seqlens: ArrayLike | None
    initial_state: StateLike | None
    out: Array | None


class DeltaOptions(SequenceOptions):
    """Options of `linattn.delta`, but ``return_state``."""


class CausalOptions(SequenceOptions, total=False):
    """Options of `linattn.causal`, but ``return_state``."""

    normalize: bool | np.bool_
    eps: float
