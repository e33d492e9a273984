"""The gufuncs, by name, and how they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._linattn import add_bfloat16, fast_call, internal_ufunc_names, make_ufunc, ufunc_names

if TYPE_CHECKING:
    from typing import TypeAlias

    Key: TypeAlias = tuple[str, str, bool]

__all__ = ["Table", "internal_ufuncs", "quiet", "run", "through_numpy", "ufuncs"]

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


ufuncs, internal_ufuncs = Gufuncs(ufunc_names), Gufuncs(internal_ufunc_names)


class Table(dict["Key", np.ufunc]):
    """The gufuncs of one form of an operator, by variant, map and whether it has a normaliser."""

    def __init__(self, names: dict[Key, str]) -> None:
        self.names = names

    def __missing__(self, key: Key) -> np.ufunc:
        gufunc = self[key] = ufuncs[self.names[key]]
        return gufunc


def run(
    gufunc: np.ufunc,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...] = (),
    dtype: np.dtype[Any] | None = None,
) -> tuple[Any, ...]:
    """The gufunc's outputs, into those given that are not None; by way of NumPy where it must.

    What is Ellipsis is left out: indices where all is one sequence, states that are zero, and
    outputs that no one wants, as far as NumPy is not needed.  Of gradients ``dtype`` is what they
    are to be in the end: where that has 16 bits, those that `_gradients.sum_all` sums come in
    float32, and by way of NumPy all of them do.
    """
    outputs = outputs or (None,) * gufunc.nout
    result = fast_call(gufunc, *inputs, *outputs)
    if result is NotImplemented and any([x is ... for x in (*inputs, *outputs)]):
        result = fast_call(gufunc, *_cast(gufunc, inputs), *outputs)
    if result is NotImplemented:
        gradient = {"dtype": np.float32} if dtype is not None and dtype.itemsize == 2 else {}
        outputs = tuple(None if x is ... else x for x in outputs)
        result = through_numpy(gufunc, *_filled(gufunc, inputs), out=outputs, **gradient)
    return result if isinstance(result, tuple) else (result,)


@quiet
def through_numpy(gufunc: np.ufunc, *inputs: Any, **options: Any) -> Any:
    """The gufunc as NumPy calls it, which casts what it must."""
    return gufunc(*inputs, **options)


@quiet
def _cast(gufunc: np.ufunc, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs as the gufunc's loop takes them, where all are NumPy's own arrays."""
    kinds = [type(x) for x in inputs]
    if not all(kind in (np.ndarray, float, type(...)) for kind in kinds):
        return inputs
    dtypes = [
        x.dtype if kind is np.ndarray else float if kind is float else np.dtype(np.float32)
        for x, kind in zip(inputs, kinds, strict=True)
    ]
    loop = gufunc.resolve_dtypes((*dtypes, *(None,) * gufunc.nout), casting="unsafe")
    return tuple(
        np.require(x, dtype, "A") if kind is np.ndarray else x
        for x, kind, dtype in zip(inputs, kinds, loop, strict=False)
    )


def _filled(gufunc: np.ufunc, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, those of them that are left out as NumPy wants them."""
    if not any(x is ... for x in inputs):
        return inputs
    signature, _, _ = str(gufunc.signature)[1:].partition(")->")
    cores = [core.split(",") for core in signature.split("),(")]
    sizes = {"r": 1}
    for x, core in zip(inputs, cores, strict=True):
        if x is not ... and core != [""]:
            sizes |= zip(core, np.shape(x)[-len(core) :], strict=True)
    begin = cores.index(["r"])
    return tuple(
        x if x is not ...
        else np.full(sizes["r"], 0 if i == begin else sizes["n"]) if core == ["r"]
        else np.broadcast_to(np.float32(0), [sizes.get(letter, 0) for letter in core])
        for i, (x, core) in enumerate(zip(inputs, cores, strict=True))
    )  # fmt: skip


try:
    import ml_dtypes
except ImportError:
    pass  # all else works without bfloat16
else:
    add_bfloat16(np.dtype(ml_dtypes.bfloat16))
