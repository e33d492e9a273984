"""Feature maps of tensors: a map of `linattn.feature_maps` as a text and a tensor, and back.

Operators of PyTorch take numbers, texts and tensors: a map is the text that describes it, and
``omega``, the directions of random features.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import feature_maps as numpy_maps
from .._check import unknown_map
from .._operator import MAPS
from ..feature_maps import FeatureMap
from ..feature_maps._base import Fused
from ._library import Operator
from ._tensors import array, maybe_array, tensor, threads


class TensorMap:
    """A map phi along the last axis of tensors, ``(..., n, d) -> (..., n, f)``, differentiable.

    Parameters
    ----------
    phi : linattn.feature_maps.FeatureMap
        What it computes, forwards and backwards.
    omega : tensor, optional
        The directions of random features where they are a tensor already; a buffer of a
        module is used as it is at each call.
    """

    def __init__(self, phi: FeatureMap, omega: Tensor | None = None) -> None:
        self.text = phi.name if isinstance(phi, Fused) else _text(phi)
        own = getattr(_innermost(phi), "omega", None)
        self.omega = torch.from_numpy(own.copy()) if omega is None and own is not None else omega
        #: Whether normalised operators rescale as they go.
        self.running = isinstance(phi, numpy_maps.PositiveRandomFeatures)

    def __call__(self, x: Tensor) -> Tensor:
        return FEATURES(x, self.text, self.omega)

    def features(self, d: int) -> int:
        """f, the number of features of d numbers."""
        return features(self.text, d, None if self.omega is None else self.omega.shape[-1])

    def __repr__(self) -> str:
        return repr(restore(self.text, self.omega))


def restore(text: str, omega: Tensor | None) -> Any:
    """The map described: a name that kernels know, or an object."""
    return text if text in MAPS else _build(_parsed(text), maybe_array(omega))


def features(text: str, d: int, directions: int | None) -> int:
    """How many features the map described makes of d numbers."""
    if text in MAPS:
        return d
    omega = None if directions is None else np.zeros((1, int(directions)))
    f: int = _build(_parsed(text), omega).features(d)
    return f


def resolve(function: str, feature_map: Any) -> Any:
    """A name that kernels know, or a callable on tensors, from what a user gave."""
    if isinstance(feature_map, str):
        if feature_map in MAPS:
            return feature_map
        if feature_map in _NAMED:
            return _NAMED[feature_map]
    if isinstance(feature_map, Fused):
        return feature_map.name
    if isinstance(feature_map, numpy_maps.FeedforwardKernel):
        from .feature_maps import FeedforwardKernel

        return FeedforwardKernel([[torch.from_numpy(w.copy()) for w in unit]
                                  for unit in feature_map.weights])  # fmt: skip
    if isinstance(feature_map, FeatureMap):
        return TensorMap(feature_map)
    if isinstance(feature_map, TensorMap) and feature_map.text in MAPS:
        return feature_map.text
    if not callable(feature_map):
        raise unknown_map(function, feature_map, ", or a function of tensors")
    return feature_map


def _innermost(phi: FeatureMap) -> FeatureMap:
    while isinstance(phi, numpy_maps.SumNormalized):
        phi = phi.feature_map
    return phi


def _text(x: Any) -> str:
    """A map, or a parameter of one, as Python would make it, without ``omega``."""
    if not isinstance(x, FeatureMap):
        return repr(x)
    given = [f"{name}={_text(getattr(x, name))}" for name in x._parameters if name != "omega"]
    return f"{type(x).__name__}({', '.join(given)})"


# What torch.compiler.assume_constant_result sets, but for importing the compiler: 0.9 s.
_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _build(x: ast.expr, omega: Any) -> Any:
    """The map, or the parameter, that a text says."""
    if not isinstance(x, ast.Call):
        return ast.literal_eval(x)
    kind = getattr(numpy_maps, x.func.id)  # type: ignore[attr-defined]
    parameters = {str(given.arg): _build(given.value, omega) for given in x.keywords}
    if "omega" in kind._parameters:
        parameters["omega"] = omega
    return kind(**parameters)


#: Made once, for a compiled function makes no objects.
_NAMED = {name: TensorMap(numpy_maps.get(name)) for name in numpy_maps.NAMES if name not in MAPS}

# --- phi(x) as an operator ----------------------------------------------------------


def _map(text: str, omega: Tensor | None) -> FeatureMap:
    return numpy_maps.get(restore(text, omega))


def _forward(x: Tensor, text: str, omega: Tensor | None) -> Tensor:
    with threads():
        return tensor(_map(text, omega)(array(x)), x.dtype)


def _backward(grad: Tensor, x: Tensor, text: str, omega: Tensor | None) -> Tensor:
    with threads():
        phi = _map(text, omega)
        return tensor(phi.input_gradient(array(x), array(grad)), x.dtype)


def _fake(x: Tensor, text: str, omega: Tensor | None) -> Tensor:
    f = features(text, x.shape[-1], None if omega is None else omega.shape[-1])
    return x.new_empty((*x.shape[:-1], f))


def _gradient(args: Any, grads: Any) -> Any:
    return FEATURES_BACKWARD(grads[0], *args), None, None


FEATURES = Operator(
    "features", ["Tensor x", "str feature_map", "Tensor? omega"], "Tensor", _forward, _fake,
    ranks=lambda x, text, omega: (1, None, None), gradient=_gradient,
)  # fmt: skip
FEATURES_BACKWARD = Operator(
    "features_backward", ["Tensor grad", "Tensor x", "str feature_map", "Tensor? omega"], "Tensor",
    _backward, lambda grad, x, text, omega: x.new_empty(x.shape),
    ranks=lambda grad, x, text, omega: (1, 1, None, None),
)  # fmt: skip
