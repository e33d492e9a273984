"""NumPy twins of the feature maps phi: value, and product of a gradient with the derivative.

Every map takes float64, longdouble or complex128, so that a complex step differentiates it; a
comparison therefore looks at the real part, and is written so that NaN falls through to NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Array = np.ndarray


class FeatureMap(Protocol):
    """phi along the last axis, (..., d) -> (..., f), and its vector-Jacobian product."""

    def __call__(self, x: Array) -> Array: ...

    def backward(self, x: Array, grad: Array) -> Array: ...


@dataclass(frozen=True)
class Elementwise:
    """A map of one number: f = d, and the Jacobian is diagonal."""

    phi: Callable[[Array], Array]
    derivative: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        return self.phi(x)

    def backward(self, x: Array, grad: Array) -> Array:
        return grad * self.derivative(x)


def _negative(x: Array) -> Array:
    """min(x, 0), by real part: the branch not taken must not overflow."""
    return np.where(x.real > 0, 0, x)


def _relu(x: Array) -> Array:
    return np.where(x.real <= 0, 0, x)


def _relu_derivative(x: Array) -> Array:
    return np.where(x.real > 0, 1.0, 0.0).astype(x.dtype)  # 0 at 0


def _elu(x: Array) -> Array:
    return np.where(x.real > 0, x + 1, np.exp(_negative(x)))  # elu(x) + 1


def _elu_derivative(x: Array) -> Array:
    return np.exp(_negative(x))


def _softplus(x: Array) -> Array:
    return _relu(x) + np.log1p(np.exp(np.where(x.real > 0, -x, x)))  # log(1 + e^x)


def _softplus_derivative(x: Array) -> Array:
    e = np.exp(np.where(x.real > 0, -x, x))
    return np.where(x.real > 0, 1, e) / (1 + e)


MAPS: dict[str, FeatureMap] = {
    "identity": Elementwise(lambda x: x, np.ones_like),
    "relu": Elementwise(_relu, _relu_derivative),
    "elu": Elementwise(_elu, _elu_derivative),
    "softplus": Elementwise(_softplus, _softplus_derivative),
    "exp": Elementwise(np.exp, np.exp),
}


@dataclass(frozen=True)
class DPFP:
    """Deterministic parameter-free projection, f = 2 d nu features.

    ``r = relu([x, -x])``; block i = 1..nu is ``r[j] r[(j - i) mod 2d]``; with `normalize` the
    features are divided by (their sum + eps).  Schlag et al. 2021, eq. 37-38.
    """

    nu: int = 1
    normalize: bool = True
    eps: float = 1e-6

    def __call__(self, x: Array) -> Array:
        y = self._products(x)
        return y / (y.sum(-1, keepdims=True) + self.eps) if self.normalize else y

    def backward(self, x: Array, grad: Array) -> Array:
        if self.normalize:  # y / t with t = sum y + eps: d/dy_j = g_j / t - (g . y) / t^2
            y = self._products(x)
            t = y.sum(-1, keepdims=True) + self.eps
            grad = grad / t - (grad * y).sum(-1, keepdims=True) / t**2
        r = _relu(np.concatenate([x, -x], -1))
        dr = np.zeros(np.broadcast_shapes(r.shape, (*grad.shape[:-1], 1)), grad.dtype)
        for i, g in enumerate(np.split(grad, self.nu, -1), 1):
            dr += g * np.roll(r, i, -1) + np.roll(g * r, -i, -1)
        up, down = np.split(dr, 2, -1)
        return up * _relu_derivative(x) - down * _relu_derivative(-x)

    def _products(self, x: Array) -> Array:
        r = _relu(np.concatenate([x, -x], -1))
        return np.concatenate([r * np.roll(r, i, -1) for i in range(1, self.nu + 1)], -1)


def get(feature_map: str | FeatureMap) -> FeatureMap:
    """The map of a name; anything else is taken to be a map already."""
    return MAPS[feature_map] if isinstance(feature_map, str) else feature_map
