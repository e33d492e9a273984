"""The gufuncs by name, and how to call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._linattn import add_bfloat16, fast_call, internal_ufunc_names, make_ufunc, ufunc_names
from .settings import one_isa

__all__ = ["internal_ufuncs", "quiet", "run", "through_numpy", "ufuncs"]

#: Decorator for functions that compute or round with NumPy's operations: like kernels, they then
#: raise no floating-point errors, whatever `numpy.errstate` says.
quiet = np.errstate(all="ignore")


class Gufuncs(dict[str, np.ufunc]):
    """Gufuncs by name, made on first use: making all would take half of the import time."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __missing__(self, name: str) -> np.ufunc:
        gufunc = self[name] = make_ufunc(name)
        return gufunc


ufuncs, internal_ufuncs = Gufuncs(ufunc_names), Gufuncs(internal_ufunc_names)


def run(
    gufunc: np.ufunc,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...] = (),
    dtype: np.dtype[Any] | None = None,
) -> tuple[Any, ...]:
    """Call a gufunc with outputs, of which those that are None are allocated.

    Plain arrays that need no cast go to it directly; otherwise NumPy makes the call.  Ellipsis
    stands for what is left out: the indices of a single sequence, states of zeros, and unwanted
    outputs, which NumPy computes regardless.  ``dtype`` is that of gradients after
    `gradient_sums.sum_all`.  If it has 16 bits, the gradients to be summed are float32, and so are
    all of them if NumPy makes the call.  NumPy would also cast the operands to float32, so arrays
    are copied to go to the gufunc directly: products then obey `set_products`.
    """
    outputs = outputs or (None,) * gufunc.nout
    narrow = dtype is not None and dtype.itemsize == 2
    result = fast_call(gufunc, *inputs, *outputs)
    if result is NotImplemented and narrow and all(map(_is_copied, inputs)):
        result = fast_call(gufunc, *_copied(gufunc, inputs), *outputs)
    if result is NotImplemented:
        gradient = {"dtype": np.float32} if narrow else {}
        outputs = tuple(None if x is ... else x for x in outputs)
        result = through_numpy(gufunc, *_filled(gufunc, inputs), out=outputs, **gradient)
    return result if isinstance(result, tuple) else (result,)


def run_in_place(
    gufunc: np.ufunc,
    inputs: tuple[Any, ...],
    out: Any,
    states: Sequence[Any],
    dtype: np.dtype[Any],
) -> Any:
    """The output of a step that updates states.

    NumPy takes no states of 16 bits, so where it makes the call, they are copied to ``dtype``.
    """
    if all([x.dtype == dtype for x in states]):
        return run(gufunc, inputs, (out, *states))[0]
    result = fast_call(gufunc, *inputs, out, *states)
    if result is NotImplemented:
        wide = [x.astype(dtype) for x in states]
        result = run(gufunc, inputs, (out, *wide))
        for x, y in zip(states, wide, strict=True):
            x[...] = y
    return result[0]


def _is_copied(x: Any) -> bool:
    return x is ... or isinstance(x, (float, np.ndarray))


def _copied(gufunc: np.ufunc, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, of which arrays are aligned and have the dtypes of the gufunc's loop."""
    kinds = [float if isinstance(x, float) else x.dtype for x in _filled(gufunc, inputs)]
    dtypes = gufunc.resolve_dtypes((*kinds, *(None,) * gufunc.nout))
    return tuple(
        np.require(x, dtype, ["ALIGNED", "ENSUREARRAY"]) if isinstance(x, np.ndarray) else x
        for x, dtype in zip(inputs, dtypes, strict=False)
    )


@quiet
@one_isa()
def through_numpy(gufunc: np.ufunc, *inputs: Any, **options: Any) -> Any:
    """Call the gufunc through NumPy, which casts operands as needed and may split the call."""
    return gufunc(*inputs, **options)


def _filled(gufunc: np.ufunc, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, with arrays in place of those that are left out."""
    if not any(x is ... for x in inputs):
        return inputs
    signature, _, _ = str(gufunc.signature)[1:].partition(")->")
    cores = [core.split(",") for core in signature.split("),(")]
    sizes = {"r": 1}
    for x, core in zip(inputs, cores, strict=True):
        if x is not ... and core != [""]:
            sizes |= zip(core, np.shape(x)[-len(core) :], strict=True)
    begin = cores.index(["r"])
    indices = [i for i in range(begin, begin + 3) if cores[i] == ["r"]]  # a state may be (r), too
    return tuple(
        x if x is not ...
        else np.full(sizes["r"], 0 if i == begin else sizes["n"]) if i in indices
        else np.broadcast_to(np.float32(0), [sizes.get(letter, 0) for letter in core])
        for i, (x, core) in enumerate(zip(inputs, cores, strict=True))
    )  # fmt: skip


try:
    import ml_dtypes
except ImportError:
    pass  # everything but bfloat16 works without it
else:
    add_bfloat16(np.dtype(ml_dtypes.bfloat16))
