"""The gufuncs by form, map and normaliser, and the numbers that they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check
from ._linattn import add_bfloat16, ufuncs

MAPS = ("identity", "relu", "elu", "softplus", "exp", "l2norm")


def _table(form: str) -> dict[tuple[str, bool], np.ufunc]:
    return {
        (name, normalize): ufuncs[f"{form}_{name}{'' if normalize else '_sum'}"]
        for name in MAPS
        for normalize in (True, False)
    }


CAUSAL = _table("causal")
CAUSAL_STATE = _table("causal_state")
CAUSAL_BACKWARD = _table("causal_backward")
CAUSAL_STATE_BACKWARD = _table("causal_state_backward")
NONCAUSAL = _table("noncausal")
NONCAUSAL_KEYS = _table("noncausal_keys")
NONCAUSAL_BACKWARD = _table("noncausal_backward")
NONCAUSAL_KEYS_BACKWARD = _table("noncausal_keys_backward")
STATE = _table("state")
STEP = _table("_step")


def _delta_table(form: str) -> dict[tuple[str, bool], np.ufunc]:
    """By map, and whether beta is one number a channel."""
    return {
        (name, per_channel): ufuncs[form.format("_channels" if per_channel else "") + f"_{name}"]
        for name in MAPS
        for per_channel in (True, False)
    }


DELTA = _delta_table("delta{}")
DELTA_STATE = _delta_table("delta{}_state")
DELTA_BACKWARD = _delta_table("delta{}_backward")
DELTA_STATE_BACKWARD = _delta_table("delta{}_state_backward")
DELTA_STEP = _delta_table("_delta{}_step")


def scalars(function: str, operands: tuple, scale: Any, eps: Any, normalize: Any) -> tuple:
    """``scale`` and, for a normaliser, ``eps``, checked."""
    scale = _check.number(function, "scale", scale, *operands)
    eps = _check.number(function, "eps", eps, *operands)
    if not all(type(x) is np.ndarray for x in operands):
        # Array libraries make float64 arrays of Python floats, and all would follow.
        cast = _check.state_dtype(*operands).type
        scale, eps = cast(scale), cast(eps)
    return (scale, eps) if normalize else (scale,)


try:
    import ml_dtypes
except ImportError:
    pass  # all else works without bfloat16
else:
    add_bfloat16(np.dtype(ml_dtypes.bfloat16))
