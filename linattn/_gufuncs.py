"""The gufuncs, by name, and how they are called."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._linattn import add_bfloat16, call_plain, make_ufunc, row_ufunc_names, ufunc_names

__all__ = ["quiet", "row_ufuncs", "run", "through_numpy", "ufuncs"]

#: Decorates what computes or rounds with NumPy's own operations: they raise no floating-point
#: errors then, whatever `numpy.errstate` says, as kernels raise none.
quiet = np.errstate(all="ignore")


class Gufuncs(dict[str, np.ufunc]):
    """Gufuncs by name, made on first use: all of them would take half the time of an import."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __missing__(self, name: str) -> np.ufunc:
        gufunc = self[name] = make_ufunc(name)
        return gufunc


ufuncs, row_ufuncs = Gufuncs(ufunc_names), Gufuncs(row_ufunc_names)


def run(
    gufunc: np.ufunc, inputs: tuple[Any, ...], outputs: tuple[Any, ...] = ()
) -> tuple[Any, ...]:
    """The gufunc's outputs, into those given that are not None; by way of NumPy where it must."""
    outputs = outputs or (None,) * gufunc.nout
    result = call_plain(gufunc, *inputs, *outputs)
    if result is NotImplemented:
        result = through_numpy(gufunc, *inputs, out=outputs)
    return result if isinstance(result, tuple) else (result,)


@quiet
def through_numpy(gufunc: np.ufunc, *inputs: Any, **options: Any) -> Any:
    """The gufunc as NumPy calls it, which casts what it must."""
    return gufunc(*inputs, **options)


try:
    import ml_dtypes
except ImportError:
    pass  # all else works without bfloat16
else:
    add_bfloat16(np.dtype(ml_dtypes.bfloat16))
