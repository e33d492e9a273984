"""Deterministic parameter-free projection."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core import checks
from .._core.gufuncs import internal_ufuncs
from ._feature_map import FeatureMap, _matrix


class DPFP(FeatureMap):
    """Deterministic parameter-free projection, f = 2 d nu features, none of them negative.

    ``r = relu([x, -x])``; block i = 1..nu of the features is ``r[j] r[(j - i) mod 2d]``.
    With ``normalize`` they are divided by (their sum + eps).

    Parameters
    ----------
    nu : int, default 1
        The number of blocks of features; with more blocks, keys overlap less.
    normalize : bool, default True
        Divide by the sum.  If the sum is 0, so are the features.
    eps : float, default 1e-6
        Added to that sum.

    Raises
    ------
    TypeError
        If ``nu`` is not an integer, ``normalize`` not a bool, or ``eps`` not a number.
    ValueError
        If ``nu`` is below 1, or ``eps`` negative.

    Notes
    -----
    2 d nu multiplications per row forward, four times that backward.  The derivative of relu at 0
    is taken as 0.

    References
    ----------
    Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers", ICML 2021,
    eq. 37-38

    Examples
    --------
    >>> from linattn import feature_maps
    >>> phi = feature_maps.DPFP(nu=1, normalize=False)
    >>> phi([[1.0, 2.0, -3.0]])
    array([[3., 2., 0., 0., 0., 0.]])
    >>> phi.features(64)
    128
    """

    _parameters = ("nu", "normalize", "eps")

    def __init__(self, nu: int = 1, normalize: bool = True, eps: float = 1e-6) -> None:
        self.nu = checks.integer("DPFP", "nu", nu)
        self.normalize = checks.flag("DPFP", "normalize", normalize)
        self.eps = checks.positive("DPFP", "eps", eps, zero=True)

    def __call__(self, x: Any) -> np.ndarray:
        x = self._input(x)
        y = self._products(x)
        if self.normalize:
            y = internal_ufuncs["sum_normalize"](y, y.dtype.type(self._number("eps", y)))
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def backward(self, x: Any, grad: Any) -> np.ndarray:
        x = self._input(x)
        grad = _matrix(self._gradient(x, grad))
        if self.normalize:
            grad = internal_ufuncs["sum_normalize_backward"](
                self._products(x), grad, x.dtype.type(self._number("eps", x))
            )
        return internal_ufuncs["dpfp_backward"](_matrix(x), grad).reshape(x.shape)

    def features(self, d: int) -> int:
        return 2 * d * self.nu

    def _products(self, x: np.ndarray) -> np.ndarray:
        x = _matrix(x)
        y = np.empty((*x.shape[:-1], self.features(x.shape[-1])), x.dtype)
        return internal_ufuncs["dpfp"](x, out=y)
