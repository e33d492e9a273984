"""Names for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._call.fused import FusedState
from ._states.state_arrays import SLSTMState, State
from .feature_maps import FeatureMap

if TYPE_CHECKING:
    from ._signatures import MapName
else:  # only a stub has them
    MapName = str

__all__ = [
    "Activation",
    "Array",
    "ArrayLike",
    "Bool",
    "Cores",
    "DType",
    "FusedState",
    "Map",
    "ReturnState",
    "SLSTMState",
    "Shape",
    "State",
]

Activation: TypeAlias = Literal["silu"] | None
Array: TypeAlias = NDArray[Any]
Bool: TypeAlias = bool | np.bool_
DType: TypeAlias = np.dtype[Any]
Map: TypeAlias = MapName | FeatureMap
ReturnState: TypeAlias = bool | Literal["exact"]
Shape: TypeAlias = tuple[int, ...]
#: The shapes of a state's arrays, without leading axes, by field.
Cores: TypeAlias = Mapping[str, Shape]
