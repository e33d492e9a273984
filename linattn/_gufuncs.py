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
    """The gufunc's outputs, into those given that are not None.

    A direct call takes plain arrays that need no cast; NumPy calls the gufunc for all others.
    Ellipsis stands for what is left out: indices where all is one sequence, states that are zero,
    and outputs that no one wants, which NumPy makes all the same.  ``dtype`` is that of gradients
    after `_gradients.sum_all`: where it has 16 bits, those to be summed come in float32, and all
    of them do if NumPy calls the gufunc.
    """
    outputs = outputs or (None,) * gufunc.nout
    result = fast_call(gufunc, *inputs, *outputs)
    if result is NotImplemented:
        gradient = {"dtype": np.float32} if dtype is not None and dtype.itemsize == 2 else {}
        outputs = tuple(None if x is ... else x for x in outputs)
        result = through_numpy(gufunc, *_filled(gufunc, inputs), out=outputs, **gradient)
    return result if isinstance(result, tuple) else (result,)


@quiet
def through_numpy(gufunc: np.ufunc, *inputs: Any, **options: Any) -> Any:
    """The gufunc as NumPy calls it, which casts what it must."""
    return gufunc(*inputs, **options)


def _filled(gufunc: np.ufunc, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, with arrays for those that are left out."""
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
