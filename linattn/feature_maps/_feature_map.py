"""The base class of feature maps: a callable on arrays with a backward, a repr and equality."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core import checks
from .._core.dtypes import state_dtype
from .._core.gufuncs import internal_ufuncs, quiet
from .._core.settings import one_isa
from .._core.summaries import shown
from .._linattn import maps


class FeatureMap:
    """A map phi along the last axis, ``(..., n, d) -> (..., n, f)``.

    Maps are values: their parameters do not change, maps with equal parameters are equal, and
    maps can be pickled.  The output is float32 for float32 and 16-bit inputs, otherwise float64.
    """

    #: Names of the constructor's arguments, which are attributes as well.
    _parameters: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        """Let the methods of a map raise no floating-point errors, and use one instruction set."""
        super().__init_subclass__()
        for name in ("__call__", "backward", "input_gradient", "exponent_gradient"):
            if name in vars(cls):
                setattr(cls, name, quiet(one_isa()(vars(cls)[name])))

    def __call__(self, x: Any) -> np.ndarray:
        """phi(x)."""
        raise NotImplementedError

    def backward(self, x: Any, grad: Any) -> Any:
        """The gradient with respect to x, from that with respect to phi(x)."""
        raise NotImplementedError

    def features(self, d: int) -> int:
        """The number of features f for inputs of width d."""
        raise NotImplementedError

    def input_gradient(self, x: Any, grad: Any) -> np.ndarray:
        """The gradient with respect to x only, where `backward` returns more."""
        return self.backward(x, grad)

    def normalized(self, eps: float = 1e-6) -> FeatureMap:
        """This map, divided by the sum of its features: see `SumNormalized`."""
        return SumNormalized(self, eps)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={shown(getattr(self, name))}" for name in self._parameters)
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in self._parameters)

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))

    def _input(self, x: Any, d: int | None = None) -> np.ndarray:
        """x as an array in the map's dtype, with rows of length d."""
        x = checks.operand(type(self).__name__, "x", x, 1)
        if d is not None and x.shape[-1] != d:
            raise checks.wrong_shape(type(self).__name__, "x", x, f"(..., n, {d})")
        return np.asarray(x, state_dtype(x))

    def _gradient(self, x: np.ndarray, grad: Any) -> np.ndarray:
        """grad as an array in x's dtype, with the shape of phi(x)."""
        grad = checks.operand(type(self).__name__, "grad", grad, 1)
        expected = (*x.shape[:-1], self.features(x.shape[-1]))
        if grad.shape != expected:
            raise checks.wrong_shape(
                type(self).__name__, "grad", grad, f"{expected}, the shape of the features"
            )
        return np.asarray(grad, x.dtype)

    def _number(self, name: str, x: np.ndarray) -> float:
        """The parameter of that name, finite in x's dtype."""
        return checks.number(type(self).__name__, name, getattr(self, name), x)


class Fused(FeatureMap):
    """A map that the kernels apply to their operands, by its name: f = d."""

    name: str

    def __call__(self, x: Any) -> np.ndarray:
        x = self._input(x)
        return internal_ufuncs[self.name](_matrix(x)).reshape(x.shape)

    def backward(self, x: Any, grad: Any) -> np.ndarray:
        x = self._input(x)
        grad = self._gradient(x, grad)
        return internal_ufuncs[f"{self.name}_backward"](_matrix(x), _matrix(grad)).reshape(x.shape)

    def features(self, d: int) -> int:
        return d


class Elementwise(Fused):
    """A map of each number, fused into the kernels: f = d.

    Parameters
    ----------
    name : {'identity', 'relu', 'elu', 'softplus', 'exp'}
        ``'elu'`` is ``elu(x) + 1``.

    Raises
    ------
    ValueError
        If the name is unknown.

    Notes
    -----
    One pass over memory forward, one backward.
    ``'exp'`` can overflow and ``'elu'`` can approach 0: see the notes of `linattn.causal`.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 7 (elu)

    Examples
    --------
    >>> from linattn import feature_maps
    >>> feature_maps.Elementwise("elu")([[-1e9, 0.0, 2.0]])
    array([[0., 1., 3.]])
    """

    names = tuple(name for name, row in maps.items() if not row["rows"])
    _parameters = ("name",)

    def __init__(self, name: str) -> None:
        self.name = checks.choice("Elementwise", "name", name, self.names)


class L2Norm(Fused):
    """Rows of norm 1, ``x / sqrt(sum x^2 + 1e-6)``, fused into the kernels: f = d.

    Notes
    -----
    The gated delta rule maps keys and queries this way: with keys of norm 1, a write replaces
    what the memory stored at the key.  Rows of zeros stay zeros.  One pass over memory forward,
    one backward.  Rows whose squares overflow are scaled first.

    References
    ----------
    Yang et al., "Gated Delta Networks", ICLR 2025, section 3.4

    Examples
    --------
    >>> from linattn import feature_maps
    >>> feature_maps.L2Norm()([[3.0, 4.0], [0.0, 0.0]]).round(6)
    array([[0.6, 0.8],
           [0. , 0. ]])
    """

    name = "l2norm"


class SumNormalized(FeatureMap):
    """Another map, divided by the sum of its features: ``phi(x) / (sum phi(x) + eps)``.

    Parameters
    ----------
    feature_map : FeatureMap
        A map without negative features, so that the sum does not vanish.
    eps : float, default 1e-6
        Added to the sum.  If the sum and eps are both 0, so are the features.

    Raises
    ------
    TypeError
        If ``feature_map`` is not a map, or ``eps`` not a number.
    ValueError
        If ``eps`` is negative or not finite.

    Notes
    -----
    One pass over the features more than the map itself.  Use it with the delta rule: each write
    then replaces a weighted mean of what the memory stores.

    References
    ----------
    Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers", ICML 2021,
    eq. 26

    Examples
    --------
    >>> from linattn import feature_maps
    >>> feature_maps.get("relu").normalized(eps=0.0)([[1.0, -1.0, 3.0]])
    array([[0.25, 0.  , 0.75]])
    """

    _parameters = ("feature_map", "eps")

    def __init__(self, feature_map: FeatureMap, eps: float = 1e-6) -> None:
        if not isinstance(feature_map, FeatureMap):
            raise TypeError(
                f"SumNormalized: feature_map is {feature_map!r}; expected a feature map"
            )
        self.feature_map = feature_map
        self.eps = checks.positive("SumNormalized", "eps", eps, zero=True)

    def __call__(self, x: Any) -> np.ndarray:
        y = self.feature_map(x)
        eps = y.dtype.type(self._number("eps", y))
        return internal_ufuncs["sum_normalize"](_matrix(y), eps).reshape(y.shape)

    def backward(self, x: Any, grad: Any) -> Any:
        y = self.feature_map(x)
        grad = self.feature_map._gradient(self.feature_map._input(x), grad)
        inner = internal_ufuncs["sum_normalize_backward"](
            _matrix(y), _matrix(grad), y.dtype.type(self._number("eps", y))
        )
        return self.feature_map.backward(x, inner.reshape(y.shape))

    def input_gradient(self, x: Any, grad: Any) -> np.ndarray:
        dx = self.backward(x, grad)
        return dx[0] if isinstance(dx, tuple) else dx

    def features(self, d: int) -> int:
        return self.feature_map.features(d)


def parameter(function: str, name: str, x: Any, axes: int = 2) -> np.ndarray:
    """x as a read-only float array of parameters with at least ``axes`` axes."""
    x = checks.operand(function, name, x, axes)
    x = np.array(x, state_dtype(x))
    x.flags.writeable = False
    return x


def _matrix(x: np.ndarray) -> np.ndarray:
    return x if x.ndim > 1 else x[None]


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.shape(x) == np.shape(y) and x.dtype == y.dtype and bool(np.all(x == y))
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(map(_same, x, y))
    return x == y
