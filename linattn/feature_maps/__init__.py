"""Feature maps phi: callable objects on arrays ``(..., n, d)``, with a backward.

Every operator takes one as ``feature_map=``.  `get` returns the object for a name.
"""

from __future__ import annotations

from ._feature_map import Elementwise, FeatureMap, L2Norm, SumNormalized
from ._names import NAMES, map_of
from .dpfp import DPFP
from .feedforward import FeedforwardKernel
from .polynomial import Rebased, Taylor
from .random_features import (
    GeneralizedRandomFeatures,
    PositiveRandomFeatures,
    RandomFourierFeatures,
    draw,
)

__all__ = [
    "DPFP",
    "NAMES",
    "Elementwise",
    "FeatureMap",
    "FeedforwardKernel",
    "GeneralizedRandomFeatures",
    "L2Norm",
    "PositiveRandomFeatures",
    "RandomFourierFeatures",
    "Rebased",
    "SumNormalized",
    "Taylor",
    "draw",
    "get",
]


def get(feature_map: str | FeatureMap) -> FeatureMap:
    """The feature map of a name, or the map itself.

    Parameters
    ----------
    feature_map : str or FeatureMap
        ``'identity'``, ``'relu'``, ``'elu'``, ``'softplus'``, ``'exp'``, ``'l2norm'``,
        ``'dpfp'``, or a map.

    Returns
    -------
    FeatureMap

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If it is neither a name nor a map.

    Examples
    --------
    >>> from linattn import feature_maps
    >>> feature_maps.get("elu")
    Elementwise(name='elu')
    >>> feature_maps.get("dpfp").features(64)
    128
    """
    return map_of("get", feature_map)
