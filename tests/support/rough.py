"""Numbers with bounds of their rounding errors: the twins' own equations, run on these, say what
their results may be off by to first order."""

from __future__ import annotations

import numpy as np

#: The absolute values of a function's derivatives, given its arguments and its value.
SLOPES = {
    np.add: lambda a, b, y: (1, 1),
    np.subtract: lambda a, b, y: (1, 1),
    np.multiply: lambda a, b, y: (abs(b), abs(a)),
    np.divide: lambda a, b, y: (1 / abs(b), abs(y / b)),
    np.negative: lambda a, y: (1,),
    np.absolute: lambda a, y: (1,),
    np.power: lambda a, b, y: (b * abs(a) ** (b - 1), 0),  # of whole b
    np.exp: lambda a, y: (y,),
    np.tanh: lambda a, y: (1 - y * y,),
    np.logaddexp: lambda a, b, y: (np.exp(a - y), np.exp(b - y)),
}
EXACT = {np.negative, np.absolute}
FUNCTIONS = {np.exp, np.tanh, np.logaddexp}
COMPARISONS = {np.equal, np.less, np.less_equal, np.greater, np.greater_equal}


class Rough(np.lib.mixins.NDArrayOperatorsMixin):
    """An array x, and bounds of its error in units of ``unit``.

    ``doubts`` gets True where a comparison may come out otherwise.
    """

    def __init__(self, x, error, unit: float, doubts: list) -> None:
        self.x, self.error = np.broadcast_arrays(x, np.nan_to_num(error, nan=0.0, posinf=np.inf))
        self._unit, self._doubts = unit, doubts

    def like(self, x, error) -> Rough:
        return Rough(x, error, self._unit, self._doubts)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if method != "__call__" or options:
            return NotImplemented
        inputs = [y.astype(float) if isinstance(y, np.ndarray) else y for y in inputs]
        x, error = [value(y) for y in inputs], [bound(y) for y in inputs]
        y = ufunc(*x)
        if ufunc in COMPARISONS:
            apart, off = abs(x[0] - x[1]), self._unit * (error[0] + error[1])
            self._doubts.append(bool(np.any((apart <= off) & (off > 0))))
            return y
        if ufunc is np.matmul:
            sizes = [abs(np.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0)) for z in x]
            first, second = (np.broadcast_to(e, z.shape) for e, z in zip(error, x, strict=True))
            count = x[0].shape[-1] + 4
            return self.like(
                y, first @ sizes[1] + sizes[0] @ second + count * (sizes[0] @ sizes[1])
            )
        own = 0 if ufunc in EXACT else 16 if ufunc in FUNCTIONS else 2
        total = own * np.where(np.isfinite(y), abs(y), 0.0)
        if ufunc in (np.add, np.subtract):  # in any order
            total = total + sum(np.where(np.isfinite(z), abs(z), 0.0) for z in map(np.asarray, x))
        for slope, e in zip(SLOPES[ufunc](*x, y), error, strict=True):
            total = total + np.where(np.asarray(e) == 0, 0.0, slope * e)
        return self.like(y, total)

    def __array_function__(self, function, types, args, options):
        parts = (value, bound)
        if function is np.where:
            return self.like(*(np.where(args[0], *map(part, args[1:])) for part in parts))
        if function is np.stack:
            rest = args[1:]
            return self.like(*(np.stack([*map(part, args[0])], *rest, **options) for part in parts))
        return NotImplemented

    def __getitem__(self, key):
        return self.like(self.x[key], self.error[key])

    def sum(self, axis) -> Rough:
        """The sum over an axis, in any order."""
        size = abs(self.x).sum(axis) * self.x.shape[axis]
        return self.like(self.x.sum(axis), self.error.sum(axis) + size)


def value(x):
    return x.x if isinstance(x, Rough) else x


def bound(x):
    return x.error if isinstance(x, Rough) else np.zeros(np.shape(x))
