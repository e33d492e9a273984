"""Feature maps as the operators of PyTorch take them: a text and a tensor.

Those operators take numbers, strings and tensors alone, so that a map is passed as the text that
describes it, and ``omega``, the directions of random features.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import feature_maps as numpy_maps
from ..._call.tables import MAPS
from ...feature_maps import FeatureMap
from ...feature_maps._feature_map import Fused
from ...feature_maps._names import class_of_maps, unknown_map
from .direct import array, compute
from .library import Operator
from .private import constant


class TensorMap:
    """A map phi along the last axis of tensors, ``(..., n, d) -> (..., n, f)``, differentiable.

    Parameters
    ----------
    phi : linattn.feature_maps.FeatureMap
        The map, or its text.
    omega : tensor, optional
        The directions of random features, if they are a tensor already; a module's buffer is read
        at each call.
    """

    #: Whether omega was an array, and may follow its operand to another device.
    _of_array = False

    def __init__(self, phi: FeatureMap | str, omega: Tensor | None = None) -> None:
        if isinstance(phi, str):
            self.text = phi
        else:
            self.text = phi._finished_text() or _whole_text(phi)  # type: ignore[attr-defined]
            own = getattr(_innermost(phi), "omega", None)
            if omega is None and own is not None:
                omega, self._of_array = torch.from_numpy(own.copy()), True
        self.omega = omega

    @property
    def rescaled(self) -> bool:
        """Whether normalised operators rescale as they go."""
        return self.text.startswith(numpy_maps.PositiveRandomFeatures.__name__)

    def __call__(self, x: Tensor) -> Tensor:
        return FEATURES(x, self.text, self.directions(x))

    def directions(self, x: Tensor) -> Tensor | None:
        """omega, on the device of x if it was an array."""
        if self._of_array and x.device != self.omega.device:  # type: ignore[union-attr]
            return self.omega.to(x.device)  # type: ignore[union-attr]
        return self.omega

    def features(self, d: int) -> int:
        """f, the number of features of d numbers."""
        return features(self.text, d, None if self.omega is None else self.omega.shape[-1])

    def __repr__(self) -> str:
        return repr(restore(self.text, self.omega))


def restore(text: str, omega: Tensor | None) -> Any:
    """The map that a text describes: a name that kernels know, or an object."""
    return text if text in MAPS else _build(_parsed(text), None if omega is None else array(omega))


def features(text: str, d: int, directions: int | None) -> int:
    """How many features the described map makes of d numbers."""
    constant, linear, pairs, by_direction = _sizes(text)
    if directions is not None:
        return by_direction * directions
    return constant + linear * d + pairs * (d * (d - 1) // 2)


@constant
def _sizes(text: str) -> tuple[int, int, int, int]:
    """How many features there are of no number, of each, of each pair; or of each direction."""
    if text in MAPS:
        return 0, 1, 0, 0
    phi = _build(_parsed(text), np.zeros((1, 1)))
    none, one, two = map(phi.features, range(3))
    return none, one - none, two - 2 * one + none, one


@constant
def described(kind: str, *parameters: Any, shape: Any = None, **options: Any) -> str:
    """The text of a map of a class with these parameters, whose omega has that shape."""
    if shape is not None:
        parameters = np.zeros(shape), *parameters
    phi = getattr(numpy_maps, kind)(*parameters, **options)
    return _whole_text(phi)


#: What maps with weights become, by their class: callables whose weights are tensors.
TRAINABLE: dict[type, Callable[[Any], Any]] = {}


def resolve(function: str, feature_map: Any) -> Any:
    """A name that kernels know, or a callable on tensors, from what a user gave."""
    if isinstance(feature_map, str):
        if feature_map in MAPS:
            return feature_map
        if feature_map in _NAMED:
            return _NAMED[feature_map]
    if isinstance(feature_map, Fused):
        return feature_map.name
    if type(feature_map) in TRAINABLE:
        return TRAINABLE[type(feature_map)](feature_map)
    if isinstance(feature_map, FeatureMap):
        return TensorMap(feature_map)
    if isinstance(feature_map, TensorMap) and feature_map.text in MAPS:
        return feature_map.text
    maker = isinstance(feature_map, FunctionType) and class_of_maps(feature_map)
    if not callable(feature_map) or isinstance(feature_map, type) or maker:
        raise unknown_map(function, feature_map, ", or a function of tensors")
    return feature_map


def applied(
    phi: Any, args: list[Any], key_lengths: Tensor | None, *, token: bool
) -> tuple[list[Any], torch.dtype | None]:
    """Operands of all tokens, or of one, with phi applied to the first two: queries and keys.

    Features of 16-bit tokens have 32 bits; then the dtype of results is returned as well.
    """
    narrow = None
    if key_lengths is not None:  # phi must not see what is past the lengths
        places = torch.arange(args[1].shape[-2], device=args[1].device)
        args[1] = torch.where((places < key_lengths[..., None])[..., None], args[1], 0)
    if args[0].dtype.itemsize == 2:
        narrow = args[0].dtype
        args = [x.float() if isinstance(x, Tensor) else x for x in args]
    if token:  # weights by head precede the tokens' axis, which one token lacks
        args[:2] = (phi(x[..., None, :])[..., 0, :] for x in args[:2])
    else:
        args[:2] = phi(args[0]), phi(args[1])
    return args, narrow


def _innermost(phi: FeatureMap) -> FeatureMap:
    while isinstance(phi, numpy_maps.SumNormalized):
        phi = phi.feature_map
    return phi


def _text(x: Any) -> str:
    """A map, or a parameter of one, as a Python expression without ``omega``."""
    if not isinstance(x, FeatureMap):
        return repr(x)
    given = [f"{name}={_text(getattr(x, name))}" for name in x._parameters if name != "omega"]
    return f"{type(x).__name__}({', '.join(given)})"


@constant
def _finished_text(phi: FeatureMap) -> str:
    """The text of a map, or "" for one without attributes.

    torch.compile passes a map without attributes if the compiled function makes the map itself; it
    then has to trace the text.  It need not trace that of a map made before, whose numbers may be
    symbols.
    """
    return _whole_text(phi) if vars(phi) else ""


# PyTorch before 2.13 passes an object to constant functions only as the self of a method.
FeatureMap._finished_text = _finished_text  # type: ignore[attr-defined]


def _whole_text(phi: FeatureMap) -> str:
    return phi.name if isinstance(phi, Fused) else _text(phi)


@lru_cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _build(x: ast.expr, omega: Any) -> Any:
    """The map, or the parameter, that an expression describes."""
    if not isinstance(x, ast.Call):
        return ast.literal_eval(x)
    kind = getattr(numpy_maps, x.func.id)  # type: ignore[attr-defined]
    parameters = {str(given.arg): _build(given.value, omega) for given in x.keywords}
    if "omega" in kind._parameters:
        parameters["omega"] = omega
    return kind(**parameters)


#: Made once, since compiled functions cannot make objects.
_NAMED = {name: TensorMap(numpy_maps.get(name)) for name in numpy_maps.NAMES if name not in MAPS}

# --- phi(x) as an operator ----------------------------------------------------------


def _map(text: str, omega: Tensor | None) -> FeatureMap:
    return numpy_maps.get(restore(text, omega))


def _forward(x: Tensor, text: str, omega: Tensor | None) -> Tensor:
    y: Tensor = compute(lambda operands: _map(text, omega)(*operands), (x,), {}, {})
    return y.to(x.dtype)


def _backward(grad: Tensor, x: Tensor, text: str, omega: Tensor | None) -> Tensor:
    phi = _map(text, omega)
    y: Tensor = compute(lambda operands: phi.input_gradient(*operands), (x, grad), {}, {})
    return y.to(x.dtype)


def _fake(x: Tensor, text: str, omega: Tensor | None) -> Tensor:
    f = features(text, x.shape[-1], None if omega is None else omega.shape[-1])
    return x.new_empty((*x.shape[:-1], f))


def _gradient(args: Any, grads: Any) -> Any:
    return FEATURES_BACKWARD(grads[0], *args), None, None


FEATURES = Operator(
    "features", ["Tensor x", "str feature_map", "Tensor? omega"], 1, _forward, _fake,
    called="feature_map", ranks=lambda x, text, omega: (1, None, None), gradient=_gradient,
)  # fmt: skip
FEATURES_BACKWARD = Operator(
    "features_backward", ["Tensor grad", "Tensor x", "str feature_map", "Tensor? omega"], 1,
    _backward, lambda grad, x, text, omega: x.new_empty(x.shape),
    called="feature_map", ranks=lambda grad, x, text, omega: (1, 1, None, None),
)  # fmt: skip
