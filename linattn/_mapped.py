"""Operators with a feature map that is an object: the map outside, the kernel with identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _check, _running
from .feature_maps import NAMES, Elementwise, FeatureMap, PositiveRandomFeatures, get


def outside(feature_map: Any) -> bool:
    """Whether the map is anything but the name of a fused one."""
    return not isinstance(feature_map, str) or feature_map == "dpfp"


def call(operator: Callable, feature_map: Any, q: Any, k: Any, *rest: Any, **options: Any) -> Any:
    """``operator(q, k, *rest, feature_map=feature_map, **options)``, forward or backward.

    phi(q) and phi(k) are arrays of their own here: (n + s) f numbers a head.
    """
    name = operator.__name__
    if outside(feature_map) and not isinstance(feature_map, (str, FeatureMap)):
        raise TypeError(
            f"{name}: feature_map is {feature_map!r}; expected one of {', '.join(NAMES)}, "
            "or an object of linattn.feature_maps"
        )
    phi = get(feature_map)
    if isinstance(phi, Elementwise):
        return operator(q, k, *rest, feature_map=phi.name, **options)
    dtype = _check.result_dtype(*(np.asarray(x) for x in (q, k, rest[0])))
    if dtype.itemsize == 2:
        return _widened(operator, phi, dtype, (q, k, *rest), options)
    if isinstance(phi, PositiveRandomFeatures) and options.get("normalize", False):
        return getattr(_running, name)(operator, phi, q, k, *rest, **options)
    result = operator(phi(q), phi(k), *rest, feature_map="identity", **options)
    if not name.endswith("_backward"):
        return result
    da, db, *others = result
    return phi.input_gradient(q, da), phi.input_gradient(k, db), *others


def _widened(operator: Callable, phi: FeatureMap, dtype: np.dtype, operands, options: dict) -> Any:
    """The call in float32, and its arrays in the 16 bits of the operands; states stay."""
    narrow = lambda x: x if isinstance(x, tuple) else x.astype(dtype)  # noqa: E731
    wide = [x if isinstance(x, tuple) else np.asarray(x, np.float32) for x in operands]
    out = options.pop("out", None)
    result = call(operator, phi, *wide, **options)
    if out is not None:
        o = result[0] if isinstance(result, tuple) else result
        _check.out(operator.__name__, out, o.shape, *map(np.asarray, operands[:3]))
        out[...] = o
        return (out, *result[1:]) if isinstance(result, tuple) else out
    return tuple(map(narrow, result)) if isinstance(result, tuple) else narrow(result)
