"""Random features, whose inner products approximate a kernel such as softmax's."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from .._core import checks
from .._core.gufuncs import internal_ufuncs
from .._core.products import product
from ._feature_map import FeatureMap, _matrix, parameter

NORMS = ("chi", "sqrt")


def draw(
    dim: int,
    features: int,
    *,
    rng: Any = None,
    orthogonal: bool = True,
    norms: str = "chi",
) -> np.ndarray:
    """Random directions ``omega (dim, features)``; the marginal of each column is N(0, I).

    Parameters
    ----------
    dim, features : int
        Rows and columns.
    rng : Generator, int or None
        A generator, or a seed.  None is the seed 0, which gives the same result every time.
    orthogonal : bool, default True
        Make the columns orthogonal in blocks of ``dim``, which lowers the variance.
    norms : {'chi', 'sqrt'}, default 'chi'
        Norms of orthogonal columns: those of N(0, I), or all sqrt(dim).

    Returns
    -------
    ndarray, float64, shape (dim, features)

    Raises
    ------
    TypeError
        If ``dim`` or ``features`` is not an integer, or another argument has a wrong type.
    ValueError
        If they are below 1, ``rng`` is negative, or ``norms`` is unknown.

    References
    ----------
    Choromanski et al., "Rethinking Attention with Performers", ICLR 2021, section 2.4

    Examples
    --------
    >>> from linattn.feature_maps import draw
    >>> omega = draw(3, 3, norms="sqrt")
    >>> (omega.T @ omega).round(6) + 0.0
    array([[3., 0., 0.],
           [0., 3., 0.],
           [0., 0., 3.]])
    """
    dim, features = (
        checks.integer("draw", name, x) for name, x in (("dim", dim), ("features", features))
    )
    norms = checks.choice("draw", "norms", norms, NORMS)
    rng = generator("draw", rng)
    if not checks.flag("draw", "orthogonal", orthogonal):
        return rng.standard_normal((dim, features))
    blocks = [orthogonal_matrix(dim, rng) for _ in range(-(-features // dim))]
    omega = np.concatenate(blocks, axis=1)[:, :features]
    if norms == "sqrt":
        return omega * math.sqrt(dim)
    return omega * np.linalg.norm(rng.standard_normal((dim, features)), axis=0)


def generator(function: str, rng: Any) -> np.random.Generator:
    """A generator, of a seed or as it is; that of the seed 0 for None."""
    try:
        return np.random.default_rng(0 if rng is None else rng)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{function}: rng is {rng!r}; expected a generator, a seed or None") from None


def orthogonal_matrix(dim: int, rng: np.random.Generator) -> np.ndarray:
    """A uniformly distributed orthogonal matrix: Q of a Gaussian one, with signs fixed by R."""
    q, r = np.linalg.qr(rng.standard_normal((dim, dim)))
    return q * np.sign(np.diagonal(r))


class RandomFeatures(FeatureMap):
    """The base class of the maps of this file: `omega`, how to draw it, and checks of rows."""

    omega: np.ndarray
    temperature: float

    @classmethod
    def sample(
        cls,
        dim: int,
        features: int,
        *,
        rng: Any = None,
        orthogonal: bool = True,
        norms: str = "chi",
        **options: Any,
    ) -> Self:
        """A map with ``omega`` (dim, features) from `draw`; options are those of the class."""
        omega = draw(dim, features, rng=rng, orthogonal=orthogonal, norms=norms)
        return cls(omega, **options)  # type: ignore[call-arg]  # each class takes its own

    def redraw(self, rng: Any = None, *, orthogonal: bool = True, norms: str = "chi") -> Self:
        """The same map with another ``omega``, drawn as in `sample`."""
        options = {name: getattr(self, name) for name in self._parameters if name != "omega"}
        return type(self).sample(
            *self.omega.shape, rng=rng, orthogonal=orthogonal, norms=norms, **options
        )

    def _set_omega(self, omega: Any) -> None:
        name = type(self).__name__
        omega = parameter(name, "omega", omega)
        if omega.ndim != 2 or 0 in omega.shape:
            raise checks.wrong_shape(name, "omega", omega, "(d, m), neither of them 0")
        self.omega = omega

    def _operands(self, x: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """x, omega and the factor sqrt(temperature), in x's dtype."""
        x = _matrix(self._input(x, self.omega.shape[0]))
        factor = math.sqrt(self._number("temperature", x))
        return x, self._directions().astype(x.dtype), x.dtype.type(factor)

    def _directions(self) -> np.ndarray:
        return self.omega

    @staticmethod
    def _reshape(x: Any, y: np.ndarray) -> np.ndarray:
        """y with the leading axes of x, which may be a single row."""
        return y.reshape(*np.shape(x)[:-1], y.shape[-1])

    def _pull(self, du: np.ndarray) -> np.ndarray:
        """The gradient of x from that of u = sqrt(temperature) x omega."""
        factor = math.sqrt(self.temperature)
        transposed = (factor * self._directions().T).astype(du.dtype)
        return self._reshape(du, product(_matrix(du), transposed))


class RandomFourierFeatures(RandomFeatures):
    """``[sin u, cos u] / sqrt(m)``, ``u = sqrt(temperature) x omega``: the Gaussian kernel.

    ``E phi(x).phi(y) = exp(-temperature |x - y|^2 / 2)``.  Features may be negative, and so
    may a normaliser: use ``normalize=False`` or inputs that are close to each other.

    Parameters
    ----------
    omega : array_like, shape (d, m)
        Random directions; columns are N(0, I).  ``sample`` draws them.
    temperature : float, default 1.0
        The kernel's inverse squared width.

    Raises
    ------
    TypeError
        If ``omega`` is not an array of real numbers, or ``temperature`` not a number.
    ValueError
        If ``omega`` has the wrong shape, or ``temperature`` is not positive.

    Notes
    -----
    f = 2 m features; 2 d m floating-point operations per row, and one sine and cosine per
    projection.

    References
    ----------
    Rahimi and Recht, "Random features for large-scale kernel machines", NeurIPS 2007;
    Peng et al., "Random feature attention", ICLR 2021, eq. 3-4

    Examples
    --------
    >>> from linattn import feature_maps
    >>> phi = feature_maps.RandomFourierFeatures.sample(4, 64, rng=1)
    >>> y = phi([[0.5, 0.0, 0.0, 0.0]])
    >>> y.shape, float((y @ y.T)[0, 0].round(6))
    ((1, 128), 1.0)
    """

    _parameters = ("omega", "temperature")

    def __init__(self, omega: Any, temperature: float = 1.0) -> None:
        self._set_omega(omega)
        self.temperature = checks.positive("RandomFourierFeatures", "temperature", temperature)

    def __call__(self, x: Any) -> np.ndarray:
        rows, omega, factor = self._operands(x)
        m = omega.shape[1]
        y = np.empty((*rows.shape[:-1], 2 * m), rows.dtype)
        internal_ufuncs["fourier_features"](rows, omega, factor, out=(y[..., :m], y[..., m:]))
        return self._reshape(x, y)

    def backward(self, x: Any, grad: Any) -> np.ndarray:
        x = self._input(x, self.omega.shape[0])
        grad, m = self._gradient(x, grad), self.omega.shape[1]
        y = self(x)
        du = grad[..., :m] * y[..., m:]
        du -= grad[..., m:] * y[..., :m]
        return self._pull(du)

    def features(self, d: int) -> int:
        return 2 * self.omega.shape[1]


class PositiveRandomFeatures(RandomFeatures):
    """``exp(u - |x'|^2 / 2) / sqrt(m)``, ``x' = sqrt(temperature) x``, ``u = x' omega``.

    ``E phi(x).phi(y) = exp(temperature x.y)``: softmax attention at the default temperature
    (FAVOR+).  No feature is negative.

    With a normaliser, `linattn.causal` and its variants rescale as they go, so inputs of any size
    neither overflow nor depend on a later token: results are finite if ``x omega`` is.  The error
    of an exponent is a few roundings of ``|x'|^2``.  Weights of keys with similar exponents are
    therefore accurate up to an ``|x'|`` of a few hundred in float32, 10^7 in float64.  Beyond that
    the largest exponent dominates, and where ``|x'|`` exceeds 10^19 (float64: 10^153), all keys
    weigh the same.  ``eps`` is then relative to the largest term of the denominator, also in
    gradients.  A `linattn.State` has the scale in ``log_scale``; in the gradient of a state, that
    field is the gradient of ``log_scale``.

    Parameters
    ----------
    omega : array_like, shape (d, m)
        Random directions; columns are N(0, I).  ``sample`` draws them.
    hyperbolic : bool, default False
        Use ``[exp(u - h), exp(-u - h)] / sqrt(2 m)`` with ``h = |x'|^2 / 2``: twice the features,
        less variance.
    temperature : float, optional
        1 / sqrt(d) by default, the scale of softmax attention.

    Raises
    ------
    TypeError
        If ``omega`` is not an array of real numbers, ``hyperbolic`` not a bool, or
        ``temperature`` not a number.
    ValueError
        If ``omega`` has the wrong shape, or ``temperature`` is not positive.

    Notes
    -----
    f = m features, 2 m if hyperbolic; 2 d f floating-point operations per row and one
    exponential per feature.

    References
    ----------
    Choromanski et al., "Rethinking Attention with Performers", ICLR 2021, eq. 5-7

    Examples
    --------
    >>> import numpy as np
    >>> from linattn import feature_maps
    >>> phi = feature_maps.PositiveRandomFeatures.sample(4, 256, rng=1)
    >>> x = np.array([[0.5, 0.0, 0.0, 0.0]])
    >>> abs((phi(x) @ phi(x).T) / np.exp(x @ x.T / 2) - 1).item() < 0.1
    True
    """

    _parameters = ("omega", "hyperbolic", "temperature")

    def __init__(
        self, omega: Any, hyperbolic: bool = False, temperature: float | None = None
    ) -> None:
        self._set_omega(omega)
        self.hyperbolic = checks.flag("PositiveRandomFeatures", "hyperbolic", hyperbolic)
        if temperature is None:
            temperature = 1 / math.sqrt(self.omega.shape[0])
        self.temperature = checks.positive("PositiveRandomFeatures", "temperature", temperature)

    def __call__(self, x: Any) -> np.ndarray:
        return self._reshape(x, internal_ufuncs["positive_features"](*self._operands(x)))

    def backward(self, x: Any, grad: Any) -> np.ndarray:
        x = self._input(x, self.omega.shape[0])
        du = self(x)
        du *= self._gradient(x, grad)
        return self.exponent_gradient(x, du)

    def exponent_gradient(self, x: np.ndarray, du: np.ndarray) -> np.ndarray:
        """The gradient of x from that of the exponents ``u - |x'|^2 / 2``."""
        dx = self._pull(du)
        dx -= x.dtype.type(self.temperature) * du.sum(-1, keepdims=True) * x
        return dx

    def features(self, d: int) -> int:
        return self.omega.shape[1] * (2 if self.hyperbolic else 1)

    def _directions(self) -> np.ndarray:
        # Pairs of opposite directions give exp(u - h) and exp(-u - h).
        return np.concatenate([self.omega, -self.omega], 1) if self.hyperbolic else self.omega


class GeneralizedRandomFeatures(RandomFeatures):
    """``fn(u) / sqrt(m)``, ``u = sqrt(temperature) x omega``.

    Parameters
    ----------
    omega : array_like, shape (d, m)
        Random directions; ``sample`` draws them.
    fn : {'relu', 'softplus', 'exp', 'elu'}, default 'relu'
        ``'elu'`` is ``elu(u) + 1``.  No choice gives negative features.
    temperature : float, default 1.0
        Scale of the squared inputs.

    Raises
    ------
    TypeError
        If ``omega`` is not an array of real numbers, or ``temperature`` not a number.
    ValueError
        If ``omega`` has the wrong shape, ``fn`` is unknown, or ``temperature`` not positive.

    Notes
    -----
    f = m features; 2 d m floating-point operations per row.

    References
    ----------
    Choromanski et al., "Rethinking Attention with Performers", ICLR 2021, section 2.2
    (generalized attention)

    Examples
    --------
    >>> from linattn import feature_maps
    >>> phi = feature_maps.GeneralizedRandomFeatures.sample(4, 16)
    >>> phi([[1.0, 0.0, 0.0, 0.0]]).min() >= 0
    np.True_
    """

    functions = ("relu", "softplus", "exp", "elu")
    _parameters = ("omega", "fn", "temperature")

    def __init__(self, omega: Any, fn: str = "relu", temperature: float = 1.0) -> None:
        self._set_omega(omega)
        self.fn = checks.choice("GeneralizedRandomFeatures", "fn", fn, self.functions)
        self.temperature = checks.positive("GeneralizedRandomFeatures", "temperature", temperature)

    def __call__(self, x: Any) -> np.ndarray:
        return self._reshape(x, internal_ufuncs[f"{self.fn}_features"](*self._operands(x)))

    def backward(self, x: Any, grad: Any) -> np.ndarray:
        x = self._input(x, self.omega.shape[0])
        grad = self._gradient(x, grad)
        rows, omega, factor = self._operands(x)
        u = product(rows, factor * omega)
        du = internal_ufuncs[f"{self.fn}_backward"](u, grad.reshape(u.shape))
        du *= x.dtype.type(1 / math.sqrt(self.omega.shape[1]))
        return self._pull(du).reshape(x.shape)

    def features(self, d: int) -> int:
        return self.omega.shape[1]
