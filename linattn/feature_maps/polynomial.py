"""Maps whose products are polynomials of the inner product."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core import checks
from .._core.gufuncs import internal_ufuncs
from ._feature_map import FeatureMap, _matrix


class _Monomials(FeatureMap):
    """Weighted products of up to two numbers of ``sqrt(scale) x``."""

    _parameters = ("scale",)

    def __init__(self, scale: float | None = None) -> None:
        self.scale = None if scale is None else checks.positive(type(self).__name__, "scale", scale)

    def __call__(self, x: Any) -> np.ndarray:
        x = self._input(x)
        y = np.empty((*_matrix(x).shape[:-1], self.features(x.shape[-1])), x.dtype)
        internal_ufuncs["monomials"](_matrix(x), self._root(x), out=y)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def backward(self, x: Any, grad: Any) -> np.ndarray:
        x = self._input(x)
        grad = _matrix(self._gradient(x, grad))
        dx = internal_ufuncs["monomials_backward"](_matrix(x), grad, self._root(x))
        return dx.reshape(x.shape)

    def features(self, d: int) -> int:
        return d * (d + 1) // 2

    def _root(self, x: np.ndarray) -> Any:
        scale = max(x.shape[-1], 1) ** -0.5 if self.scale is None else self._number("scale", x)
        return x.dtype.type(scale**0.5)


class Rebased(_Monomials):
    """All products of two numbers: ``phi(x).phi(y) = (scale x.y)^2``, f = d (d + 1) / 2.

    The features are ``scale x_i^2`` and ``sqrt(2) scale x_i x_j``, i < j, by rows i.

    Parameters
    ----------
    scale : float, optional
        Multiplies the inner product; default: 1 / sqrt(d).

    Raises
    ------
    TypeError
        If ``scale`` is not a number.
    ValueError
        If ``scale`` is not positive.

    Notes
    -----
    About f multiplications per row forward, two times that backward.  Weights are at least 0, those
    of single features are not.

    References
    ----------
    Aksenov et al., "Linear Transformers with Learnable Kernel Functions are Better In-Context
    Models", ACL 2024

    Examples
    --------
    >>> from linattn import feature_maps
    >>> phi = feature_maps.Rebased(scale=1.0)
    >>> phi([[3.0, 4.0]]).round(3)
    array([[ 9.   , 16.971, 16.   ]])
    >>> round(float(phi([1.0, 2.0]) @ phi([3.0, 4.0])), 9)
    121.0
    """


class Taylor(_Monomials):
    """Products of up to two numbers: ``phi(x).phi(y) = 1 + s + s^2 / 2``, where ``s = scale x.y``.

    The second order Taylor polynomial of e^s.  The f = 1 + d + d (d + 1) / 2 features are 1,
    ``sqrt(scale) x``, ``scale x_i^2 / sqrt(2)`` and ``scale x_i x_j``, i < j, by rows i.

    Parameters
    ----------
    scale : float, optional
        Multiplies the inner product; default: 1 / sqrt(d).

    Raises
    ------
    TypeError
        If ``scale`` is not a number.
    ValueError
        If ``scale`` is not positive.

    Notes
    -----
    About f multiplications per row forward, two times that backward.  Weights are at least 1/2;
    those of single features may be negative.

    References
    ----------
    Arora et al., "Simple linear attention language models balance the recall-throughput
    tradeoff", ICML 2024

    Examples
    --------
    >>> from linattn import feature_maps
    >>> phi = feature_maps.Taylor(scale=1.0)
    >>> phi([[3.0, 4.0]]).round(3)
    array([[ 1.   ,  3.   ,  4.   ,  6.364, 12.   , 11.314]])
    >>> round(float(phi([1.0, 2.0]) @ phi([3.0, 4.0])), 9)
    72.5
    """

    def features(self, d: int) -> int:
        return 1 + d + super().features(d)
