"""Names for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._call.fused import FusedState
from ._states.state_arrays import State
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
    "CausalOptions",
    "ChannelOptions",
    "ConvolutionOptions",
    "DType",
    "FusedState",
    "GatedDeltaOptions",
    "GatedOptions",
    "LinearScanOptions",
    "MLSTMOptions",
    "Map",
    "RecurrenceOptions",
    "SelectiveScanOptions",
    "SequenceOptions",
    "Shape",
    "State",
]

Activation: TypeAlias = Literal["silu"] | None
Array: TypeAlias = NDArray[Any]
Bool: TypeAlias = bool | np.bool_
DType: TypeAlias = np.dtype[Any]
Map: TypeAlias = MapName | FeatureMap
Shape: TypeAlias = tuple[int, ...]


class ConvolutionOptions(TypedDict, total=False):
    """The options of `linattn.causal_conv1d`, except ``return_state``."""

    activation: Activation
    cu_seqlens: ArrayLike | None
    initial_state: Array | None
    state_indices: ArrayLike | None
    state_at: ArrayLike | None
    out: Array | None


class LinearScanOptions(TypedDict, total=False):
    """What `linattn.linear_scan` takes, but ``return_state``."""

    log: Bool
    reverse: Bool
    cu_seqlens: ArrayLike | None
    initial_state: State | None
    state_indices: ArrayLike | None
    state_at: ArrayLike | None
    out: Array | None


class SelectiveScanOptions(TypedDict, total=False):
    """What `linattn.selective_scan` takes, but ``return_state``."""

    D: ArrayLike | None
    z: ArrayLike | None
    dt_bias: ArrayLike | None
    softplus: Bool
    key_lengths: ArrayLike | None
    cu_seqlens: ArrayLike | None
    initial_state: State | None
    state_indices: ArrayLike | None
    state_at: ArrayLike | None
    out: Array | None


class ChannelOptions(TypedDict, total=False):
    """The options of every recurrence over tokens, except ``return_state``."""

    key_lengths: ArrayLike | None
    cu_seqlens: ArrayLike | None
    initial_state: State | None
    state_indices: ArrayLike | None
    state_at: ArrayLike | None
    out: Array | None


class MLSTMOptions(ChannelOptions, total=False):
    """What `linattn.mlstm` takes, but ``return_state``."""

    scale: float | None
    normalize: Bool
    eps: float


class SequenceOptions(ChannelOptions, total=False):
    """What one with queries takes."""

    scale: float


class RecurrenceOptions(SequenceOptions, total=False):
    """Those of recurrences with a feature map."""

    feature_map: Map


class GatedOptions(RecurrenceOptions, total=False):
    """Those of `linattn.gated`."""

    bonus: ArrayLike | None


class GatedDeltaOptions(RecurrenceOptions, total=False):
    """Those of `linattn.gated_delta`."""

    erase: ArrayLike | None


class CausalOptions(RecurrenceOptions, total=False):
    """Those of recurrences with a normaliser."""

    normalize: Bool
    eps: float
