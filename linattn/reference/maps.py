# mypy: ignore-errors
"""NumPy twins of the feature maps phi: value, and product of a gradient with the derivative.

Every map takes float64, longdouble or complex128, so that a complex step differentiates it.
Comparisons therefore use the real part, and are written so that NaN gives NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class L2Norm:
    """``x / sqrt(sum x^2 + 1e-6)``."""

    def __call__(self, x: Array) -> Array:
        return x / self._norm(x)

    def backward(self, x: Array, grad: Array) -> Array:
        y = self(x)
        return (grad - (grad * y).sum(-1, keepdims=True) * y) / self._norm(x)

    @staticmethod
    def _norm(x: Array) -> Array:
        return np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


MAPS: dict[str, FeatureMap] = {
    "identity": Elementwise(lambda x: x, np.ones_like),
    "relu": Elementwise(_relu, _relu_derivative),
    "elu": Elementwise(_elu, _elu_derivative),
    "softplus": Elementwise(_softplus, _softplus_derivative),
    "exp": Elementwise(np.exp, np.exp),
    "l2norm": L2Norm(),
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


@dataclass(frozen=True)
class Rebased:
    """``phi(x).phi(y) = (scale x.y)^2``: all products of two numbers.  Aksenov et al. 2024."""

    scale: float | None = None

    def __call__(self, x: Array) -> Array:
        u, (i, j), weight = self._parts(x)
        return weight * u[..., i] * u[..., j]

    def backward(self, x: Array, grad: Array) -> Array:
        u, (i, j), weight = self._parts(x)
        pairs = np.zeros((*grad.shape[:-1], x.shape[-1], x.shape[-1]), grad.dtype)
        pairs[..., i, j] = weight * grad
        du = (pairs @ u[..., None] + np.swapaxes(pairs, -1, -2) @ u[..., None])[..., 0]
        return self._root(x) * du

    def _parts(self, x: Array) -> tuple[Array, tuple[Array, Array], Array]:
        i, j = np.triu_indices(x.shape[-1])
        return self._root(x) * x, (i, j), np.where(i == j, 1, 2**0.5)

    def _root(self, x: Array) -> float:
        return (x.shape[-1] ** -0.5 if self.scale is None else self.scale) ** 0.5


@dataclass(frozen=True)
class Taylor(Rebased):
    """``phi(x).phi(y) = 1 + s + s^2 / 2``, ``s = scale x.y``.  Arora et al. 2024."""

    def __call__(self, x: Array) -> Array:
        u = self._root(x) * x
        return np.concatenate([u[..., :1] * 0 + 1, u, super().__call__(x) / 2**0.5], -1)

    def backward(self, x: Array, grad: Array) -> Array:
        d = x.shape[-1]
        of_pairs = super().backward(x, grad[..., 1 + d :]) / 2**0.5
        return self._root(x) * grad[..., 1 : 1 + d] + of_pairs


@dataclass(frozen=True)
class SumNormalized:
    """``phi(x) / (sum phi(x) + eps)``.  Schlag et al. 2021, eq. 26."""

    feature_map: FeatureMap
    eps: float = 1e-6

    def __call__(self, x: Array) -> Array:
        y = self.feature_map(x)
        return y / (y.sum(-1, keepdims=True) + self.eps)

    def backward(self, x: Array, grad: Array) -> Array:
        y = self.feature_map(x)
        t = y.sum(-1, keepdims=True) + self.eps
        inner = grad / t - (grad * y).sum(-1, keepdims=True) / t**2
        return self.feature_map.backward(x, inner)


@dataclass(frozen=True)
class Fourier:
    """``[sin u, cos u] / sqrt m``, ``u = sqrt(temperature) x omega``.  Peng et al. 2021, eq. 3."""

    omega: Array
    temperature: float = 1.0

    def __call__(self, x: Array) -> Array:
        u = self.temperature**0.5 * (x @ self.omega)
        return np.concatenate([np.sin(u), np.cos(u)], -1) / u.shape[-1] ** 0.5

    def backward(self, x: Array, grad: Array) -> Array:
        sin, cos = np.split(self(x), 2, -1)
        of_sin, of_cos = np.split(grad, 2, -1)
        return self.temperature**0.5 * (of_sin * cos - of_cos * sin) @ self.omega.T


@dataclass(frozen=True)
class Positive:
    """``exp(u - |x'|^2 / 2) / sqrt m``, ``x' = sqrt(temperature) x``, ``u = x' omega``.

    omega holds opposite directions side by side for the hyperbolic variant.
    Choromanski et al. 2021, eq. 5-7.
    """

    omega: Array
    temperature: float

    def __call__(self, x: Array) -> Array:
        x = self.temperature**0.5 * x
        exponent = x @ self.omega - (x * x).sum(-1, keepdims=True) / 2
        return np.exp(exponent) / self.omega.shape[-1] ** 0.5

    def backward(self, x: Array, grad: Array) -> Array:
        du = grad * self(x)
        inner = du.sum(-1, keepdims=True) * self.temperature * x
        return self.temperature**0.5 * du @ self.omega.T - inner


@dataclass(frozen=True)
class Generalized:
    """``fn(u) / sqrt m``, ``u = sqrt(temperature) x omega``.  Choromanski et al. 2021, 2.2."""

    omega: Array
    fn: str = "relu"
    temperature: float = 1.0

    def __call__(self, x: Array) -> Array:
        u = self.temperature**0.5 * (x @ self.omega)
        return MAPS[self.fn](u) / u.shape[-1] ** 0.5

    def backward(self, x: Array, grad: Array) -> Array:
        u = self.temperature**0.5 * (x @ self.omega)
        du = MAPS[self.fn].backward(u, grad) / u.shape[-1] ** 0.5
        return self.temperature**0.5 * du @ self.omega.T


@dataclass(frozen=True)
class Feedforward:
    """``f(x W) * sigmoid(gate)``, unit by unit; f is softplus in the last.

    Yorsh and Kovalenko 2022.  The gradient is that of x alone.
    """

    weights: tuple

    def __call__(self, x: Array) -> Array:
        for i, unit in enumerate(self.weights):
            x = self._parts(i, unit, x)[-1]
        return x

    def backward(self, x: Array, grad: Array) -> Array:
        tape = [x]
        for i, unit in enumerate(self.weights):
            tape.append(self._parts(i, unit, tape[-1])[-1])
        for i in reversed(range(len(self.weights))):
            unit = self.weights[i]
            f, slope, gate, _ = self._parts(i, unit, tape[i])
            dx = (grad * slope * gate) @ unit[0].mT
            if len(unit) > 1:
                db = grad * f * gate * (1 - gate)
                for w in reversed(unit[1:]):
                    db = db @ w.mT
                dx = dx + db
            grad = dx
        return grad

    def _parts(self, i: int, unit, x: Array):
        """f(x W), f'(x W), the gate, and the output."""
        a = x @ unit[0]
        phi = MAPS["softplus" if i == len(self.weights) - 1 else "identity"]
        gate = np.ones_like(a)
        if len(unit) > 1:
            b = x
            for w in unit[1:]:
                b = b @ w
            gate = _softplus_derivative(b)
        return phi(a), phi.backward(a, np.ones_like(a)), gate, phi(a) * gate


def twin(feature_map) -> FeatureMap:
    """The twin of an object of `linattn.feature_maps`, by the name of its class."""
    kind, get_parameter = type(feature_map).__name__, partial(getattr, feature_map)
    if kind in ("Elementwise", "L2Norm"):
        return MAPS[feature_map.name]
    if kind == "SumNormalized":
        return SumNormalized(twin(feature_map.feature_map), feature_map.eps)
    if kind == "PositiveRandomFeatures":
        omega = feature_map.omega
        omega = np.concatenate([omega, -omega], 1) if feature_map.hyperbolic else omega
        return Positive(omega, feature_map.temperature)
    return {
        "DPFP": DPFP,
        "Rebased": Rebased,
        "Taylor": Taylor,
        "RandomFourierFeatures": Fourier,
        "GeneralizedRandomFeatures": Generalized,
        "FeedforwardKernel": Feedforward,
    }[kind](*map(get_parameter, feature_map._parameters))


def get(feature_map: str | FeatureMap) -> FeatureMap:
    """The map of a name; anything else is taken to be a map already."""
    return MAPS[feature_map] if isinstance(feature_map, str) else feature_map
