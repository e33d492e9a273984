"""The names of feature maps and of their classes, and the error for what is no map."""

from __future__ import annotations

import inspect
from typing import Any

from ._feature_map import Elementwise, FeatureMap, L2Norm, SumNormalized
from .dpfp import DPFP
from .feedforward import FeedforwardKernel
from .polynomial import Rebased, Taylor
from .random_features import (
    GeneralizedRandomFeatures,
    PositiveRandomFeatures,
    RandomFourierFeatures,
)

#: The names that `get` and every operator take.
NAMES = (*Elementwise.names, "l2norm", "dpfp")
#: The classes of maps, by name.
CLASSES = {
    x.__name__: x
    for x in (
        DPFP, Elementwise, FeatureMap, FeedforwardKernel, GeneralizedRandomFeatures, L2Norm,
        PositiveRandomFeatures, RandomFourierFeatures, Rebased, SumNormalized, Taylor,
    )
}  # fmt: skip


def map_of(function: str, feature_map: Any) -> FeatureMap:
    """The map of a name, or the map itself, for a function that errors are to name."""
    if isinstance(feature_map, FeatureMap):
        return feature_map
    if not isinstance(feature_map, str) or feature_map not in NAMES:
        raise unknown_map(function, feature_map)
    if feature_map == "dpfp":
        return DPFP()
    if feature_map == "l2norm":
        return L2Norm()
    return Elementwise(feature_map)


def unknown_map(function: str, feature_map: Any, more: str = "") -> Exception:
    """The error for an invalid feature map; ``more`` names what else may be given."""
    error = ValueError if isinstance(feature_map, str) else TypeError
    kind = class_of_maps(feature_map)
    return error(
        f"{function}: feature_map is {feature_map!r}; expected one of {', '.join(NAMES)}, or an "
        f"object of linattn.feature_maps{kind and f', such as {_made(kind)}'}{more}"
    )


def class_of_maps(x: Any) -> str:
    """The name of the class of maps that x is, by name or as such, in place of a map of that class;
    "" if there is none."""
    if not isinstance(x, str):
        ours = (getattr(x, "__module__", None) or "").startswith("linattn.")
        x = getattr(x, "__name__", "") if ours else ""
    return next((name for name in CLASSES if name.lower() == x.lower()), "")


def _made(kind: str) -> str:
    """How to make a map of that class."""
    made = CLASSES[kind]
    required = [x for x in inspect.signature(made).parameters.values() if x.default is x.empty]
    return f"{kind}{'.sample' if hasattr(made, 'sample') else ''}({'...' if required else ''})"
