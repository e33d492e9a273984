"""The gufuncs themselves: ``isinstance(f, numpy.ufunc)``, with all that this brings
(``out=``, ``axes=``, ``dtype=``, broadcasting, ``__array_ufunc__``).

``causal_elu(q, k, v, scale, eps)`` is `linattn.causal` with the map elu and the
normaliser, ``causal_elu_sum(q, k, v, scale)`` the same without it; likewise for
``noncausal``, ``causal_backward`` and ``noncausal_backward`` and every fused map.
"""

from ._linattn import ufuncs as _ufuncs

__all__ = sorted(_ufuncs)

globals().update(_ufuncs)


def __dir__() -> list[str]:
    return __all__
