"""Operators with a feature map that is an object: the map outside, the kernel with identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _check, _gradients, _running
from .feature_maps import NAMES, FeatureMap, PositiveRandomFeatures, get
from .feature_maps._base import Fused


def outside(feature_map: Any) -> bool:
    """Whether the map is anything but the name of a fused one."""
    return not isinstance(feature_map, str) or feature_map == "dpfp"


def call(operator: Callable, feature_map: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """``operator(q, k, v, feature_map=feature_map, **options)``, forward or backward.

    phi(q) and phi(k) are arrays of their own here: (n + s) f numbers a head.
    """
    name = operator.__name__
    if not isinstance(feature_map, (str, FeatureMap)):
        raise TypeError(
            f"{name}: feature_map is {feature_map!r}; expected one of {', '.join(NAMES)}, "
            "or an object of linattn.feature_maps"
        )
    phi = get(feature_map)
    if isinstance(phi, Fused):
        return operator(q, k, v, feature_map=phi.name, **options)
    q, k, v, others = _operands(name, q, k, v, options)
    dtype = _check.result_dtype(q, k, v, *others.values())
    work = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    q, k = np.asarray(q, work), np.asarray(k, work)
    run = _plain
    if isinstance(phi, PositiveRandomFeatures) and options.get("normalize", False):
        run = getattr(_running, name)
    if dtype == work:
        return run(operator, phi, q, k, v, **{**options, **others})
    others = {key: np.asarray(x, work) for key, x in others.items()}
    out = options.pop("out", None)
    result = run(operator, phi, q, k, np.asarray(v, work), **{**options, **others})
    return _narrowed(name, result, dtype, out)


def _operands(name: str, q: Any, k: Any, v: Any, options: dict) -> tuple[Any, Any, Any, dict]:
    """The operands, checked before anything converts them: q, k, v, and the others by name."""
    if name.endswith("step"):
        q, k, v, _ = _check.token(name, q, k, v)
    else:
        q, k, v, _ = _check.qkv(name, q, k, v, same_length=not name.startswith("noncausal"))
    others = {
        key: _check.operand(name, key, options[key], 0)
        for key in ("beta", "grad_out")
        if key in options and not isinstance(options[key], (int, float))  # numbers are weak
    }
    return q, k, v, others


def _plain(operator: Callable, phi: FeatureMap, q: Any, k: Any, v: Any, **options: Any) -> Any:
    result = operator(phi(q), phi(k), v, feature_map="identity", **options)
    if not operator.__name__.endswith("_backward"):
        return result
    da, db, *others = result
    dk = phi.input_gradient(k, db)
    _gradients.clear_padding(dk, options["key_lengths"])
    return phi.input_gradient(q, da), dk, *others


def _narrowed(name: str, result: Any, dtype: np.dtype, out: np.ndarray | None) -> Any:
    """The float32 arrays of a result in 16 bits, the first of them in ``out``; states stay."""
    if not isinstance(result, tuple):
        return _narrowed(name, (result,), dtype, out)[0]
    if out is not None:
        _check.out(name, out, result[0].shape, np.empty(0, dtype))
        out[...] = result[0]
        return (out, *result[1:])
    return tuple(x if isinstance(x, tuple) else x.astype(dtype) for x in result)
