"""Operands and their axes: which are an operand's own, which lead, and how long they have to be.

The sizes of the letters come from the operands in order.  The first operands, up to the one that
tells the last size, are called leading here: q, k and v for most recurrences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._linattn import operators
from . import checks
from .dtypes import COMPLEX, FAST, is_weak, real_dtype, result_dtype, state_dtype
from .lazy import in_one_chunk, is_lazy, refuse, refuse_token

if TYPE_CHECKING:
    from .._types import DType, Shape


class Operand(NamedTuple):
    """An operand of a recurrence.

    Its dimensions are letters: n tokens, s keys, d the width of q and k, m that of v.  A step has
    no n.
    """

    name: str
    dims: str  #: "n" a number a token, "nd" a row a token, "d" a row for all tokens
    channels: str = ""  #: one more dimension that it may have, told by the number of its axes
    optional: bool = False
    state_dtype: bool = False  #: held as states are: it does not affect the dtype of a call
    suffix: str = ""  #: of a gufunc's name where it has channels, or is not left out

    @property
    def has_tokens(self) -> bool:
        """Whether it has an axis of tokens, or of keys: the first of its own."""
        return self.dims[:1] in ("n", "s")

    def has_channels(self, axes: int, longest: int) -> bool:
        """Whether an array of so many axes has channels; the longest leading operand has
        ``longest``."""
        return bool(self.channels) and axes >= longest

    def own_axes(self, axes: int, longest: int, *, tokens: bool = True) -> int:
        """How many axes of such an array do not lead: of all tokens, or of one."""
        return len(self.letters(tokens=tokens)) + self.has_channels(axes, longest)

    def letters(self, *, tokens: bool) -> str:
        """The dimensions it always has: of all tokens, or of one."""
        return self.dims if tokens else self.dims.replace("n", "")


class Fit(NamedTuple):
    """What the shapes of the operands of a call tell."""

    shapes: tuple[Shape | None, ...]  #: of the operands, None for those left out
    narrow: tuple[int, ...]  #: the operands with one number for all their channels
    typed: tuple[int, ...]  #: those that determine the dtype, counted without those left out
    variant: str  #: the suffixes of the gufunc's name
    batch: Shape
    shape: Shape  #: of the output
    sizes: dict[str, int]  #: by letter
    core: Shape  #: of a state
    own: Shape  #: the axes of the output that do not lead


class Call(NamedTuple):
    """The operands of one call, checked."""

    arrays: tuple[Any, ...]  #: as gufuncs take them, without those left out
    typed: tuple[Any, ...]  #: those of them that determine the dtype of the call
    fit: Fit
    alike: bool  #: whether all are of one dtype that kernels compute in

    def cast(self, *more: Any) -> tuple[Any, ...]:
        """The arrays, and more operands, in the dtypes that they are computed in."""
        arrays = *self.arrays, *more
        if self.alike and all(x.dtype is arrays[0].dtype for x in more):
            return arrays
        typed = *self.typed, *more
        dtype, wide = result_dtype(*typed), state_dtype(*typed)
        kept = {*self.fit.typed, *range(len(self.arrays), len(arrays))}
        with np.errstate(all="ignore"):
            return tuple([
                x.astype(dtype if i in kept else wide, copy=False) if type(x) is np.ndarray else x
                for i, x in enumerate(arrays)
            ])  # fmt: skip

    @property
    def state_dtype(self) -> DType:
        """The dtype of the computation and of states."""
        dtype: DType = self.arrays[0].dtype if self.alike else state_dtype(*self.typed)
        return dtype

    @property
    def given(self) -> tuple[Shape, ...]:
        """The shapes of the arrays as they came."""
        return tuple([shape for shape in self.fit.shapes if shape is not None])

    @property
    def summed(self) -> list[Shape]:
        """The shapes that gradients are summed to: without the axes that gufuncs do not take."""
        narrow = self.fit.narrow
        pairs = enumerate(self.fit.shapes)
        return [x[:-1] if i in narrow else x for i, x in pairs if x is not None]

    @property
    def is_spread(self) -> bool:
        """Whether an operand was broadcast along axes of its own, or had one of them cut off."""
        return any(x.shape != shape for x, shape in zip(self.arrays, self.given, strict=True))

    @property
    def variant(self) -> str:
        """The suffixes of the gufunc's name."""
        return self.fit.variant

    @property
    def batch(self) -> Shape:
        """The leading axes of all operands together."""
        return self.fit.batch

    @property
    def shape(self) -> Shape:
        """That of the output."""
        return self.fit.shape

    @property
    def core(self) -> Shape:
        """The shape of a state without leading axes."""
        return self.fit.core


class Layout:
    """The operands of a recurrence, its output and its state, by the letters of their axes.

    ``one_less`` has letters of which the size is one less than that of another, ``fixed`` the sizes
    of those that have only one, ``written`` letters that messages write otherwise.
    """

    def __init__(
        self, operands: Sequence[Operand], output: str = "nm", state: str = "dm", *,
        complex_too: bool = False, one_less: Mapping[str, str] = MappingProxyType({}),
        written: Mapping[str, str] = MappingProxyType({}),
        fixed: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.operands = tuple(operands)
        self.one_less, self.fixed, self.written = (
            one_less,
            fixed,
            {"f": "r", **written},
        )  # f: a state's width
        self.leading = _leading(self.operands)
        self.output, self.state = output, state
        #: Whether each number of the output comes from one of each operand, over the tokens:
        #: then all axes broadcast, and operands may lack some of their own.
        self.elementwise = all(x.dims == output for x in self.operands)
        self.complex_too = complex_too  #: whether numbers may be complex
        self._dtypes = FAST + COMPLEX if complex_too else FAST
        #: Numbers of Python's, which determine no dtype.
        self.numbers = (int, float, complex) if complex_too else (int, float)

    @classmethod
    def of(
        cls, name: str, public: Mapping[str, str] = MappingProxyType({}), **letters: Any
    ) -> Layout:
        """That of an operator in operators.def; the sums over all keys count as a state.

        ``public`` has the names of operands that are called otherwise in the table.
        """
        row = operators[name]
        states = [dims for _, dims in row["state"][:1]]
        operands = [
            x._replace(name=public[x.name]) if x.name in public else x
            for x in (Operand(*x) for x in row["inputs"])
        ]
        return cls(operands, row["outputs"][0][1], *states, complex_too=row["complex"], **letters)

    def sized(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes by letter, with those that follow from others."""
        if not self.one_less:
            return dict(sizes)
        return {**sizes, **{x: sizes[y] - 1 for x, y in self.one_less.items()}}

    def at(self, tokens: Any) -> tuple[Any, ...]:
        """The index of some tokens of the output."""
        return (..., tokens, *(slice(None),) * (len(self.output) - 1))

    def dots(self, letters: str, sizes: Mapping[str, int] = MappingProxyType({})) -> str:
        """The shape of those letters, with the sizes that are known."""
        sized = (str(sizes.get(x, self.written.get(x, x))) for x in letters)
        return f"({', '.join(['...', *sized])})"

    def read(self, function: str, operands: Sequence[Any], *, tokens: bool = True) -> Call:
        """The operands, checked: of all tokens, or of one.  The last ones may be missing."""
        arrays, alike = self._arrays(function, operands)
        shapes = tuple([None if x is None else x.shape for x in arrays])
        fit = _fit(self, function, shapes, tokens)
        for i in fit.narrow:
            arrays[i] = arrays[i][..., 0]
        if self.elementwise:
            arrays = [spread(x, fit.own) for x in arrays]
        if None in shapes:
            arrays = [x for x in arrays if x is not None]
        typed = arrays
        if len(fit.typed) < len(arrays):
            typed = [arrays[i] for i in fit.typed]
        return Call(tuple(arrays), tuple(typed), fit, alike)

    def read_for_gufunc(
        self, function: str, operands: Sequence[Any], *, tokens: bool = True
    ) -> Call:
        """`read`, where a gufunc takes dask arrays as they are."""
        if is_lazy(operands):
            if not tokens:
                refuse_token(function, operands)
            operands = [
                self.in_one_chunk(function, row.name, x, len(row.dims))
                for row, x in zip(self.operands, operands, strict=False)
            ]
        return self.read(function, operands, tokens=tokens)

    def in_one_chunk(self, function: str, name: str, x: Any, own: int) -> Any:
        """A dask array as gufuncs take it; anything else as it is."""
        if self.fixed:  # dask finds dtypes by calls with axes of length 1
            refuse(function, (x,))
        return in_one_chunk(function, name, x, own)

    def own_axes(self, arrays: Sequence[Any], *, tokens: bool = True) -> list[int]:
        """How many axes of each array do not lead; 0 for None, an operand that is left out."""
        longest = max(x.ndim for x in arrays[: self.leading])
        return [
            0 if x is None else row.own_axes(x.ndim, longest, tokens=tokens)
            for row, x in zip(self.operands, arrays, strict=False)
        ]

    def _arrays(self, function: str, operands: Sequence[Any]) -> tuple[list[Any], bool]:
        """The operands as arrays of numbers, None for those left out; whether all of them were of
        one dtype that kernels compute in."""
        arrays: list[Any] = []
        alike, dtype = True, getattr(operands[0], "dtype", None)
        if dtype not in self._dtypes:
            dtype = None  # as no array has
        for i, (row, x) in enumerate(zip(self.operands, operands, strict=False)):
            if type(x) is np.ndarray and x.dtype is dtype:
                arrays.append(x)
                continue
            if x is None and row.optional:
                arrays.append(None)
                continue
            if is_weak(x, self.numbers) and (i >= self.leading or self.elementwise):
                x = _weak(function, row, x, self._tellers(operands, arrays))
            if type(x) is not np.ndarray or x.dtype is not dtype:
                x = checks.operand(function, row.name, x, 0, complex_too=self.complex_too)
                alike = False
            arrays.append(x)
        return arrays, alike

    def _tellers(self, operands: Sequence[Any], arrays: Sequence[Any]) -> Sequence[Any]:
        """What tells the dtype of a number of Python's: the leading operands, or all arrays."""
        if not self.elementwise:
            return arrays[: self.leading]
        return [np.asarray(x) for x in operands if not is_weak(x, self.numbers)] or [np.empty(0)]


@lru_cache(256)  # most calls have the shapes of the call before
def _fit(layout: Layout, function: str, shapes: tuple[Shape | None, ...], tokens: bool) -> Fit:
    """What the shapes of operands tell, of all tokens or of one, or the error that they are."""
    if layout.elementwise:
        return _fit_elementwise(layout, function, shapes, tokens)
    longest = max(len(shape or ()) for shape in shapes[: layout.leading])
    sizes = dict(layout.fixed)
    narrow, variant, batch = [], "", ()
    for i, (row, shape) in enumerate(zip(layout.operands, shapes, strict=False)):
        if shape is None:
            continue
        letters, own = row.letters(tokens=tokens), shape
        wide = row.has_channels(len(shape), longest)
        if wide and shape[-1] == 1:
            narrow.append(i)
            own, wide = shape[:-1], False
        letters += row.channels if wide else ""
        lead = len(own) - len(letters)
        if lead < 0 or own[lead:] != tuple(map(sizes.get, letters, own[lead:])):
            raise _misfit(layout, function, shapes[: i + 1], sizes, tokens)
        sizes.update(zip(letters, own[lead:], strict=True))
        try:
            batch = np.broadcast_shapes(batch, own[:lead])
        except ValueError:
            raise ValueError(
                f"{function}: {row.name} has shape {shape}, whose leading axes do not broadcast "
                f"with {batch}, those of {_listed(_named(layout, shapes[:i]))}; expected equal "
                "lengths, or 1, axis by axis"
            ) from None
        variant += row.suffix if wide or row.optional else ""
    for letter in layout.one_less.values():
        if sizes[letter] < 1:
            i = next(i for i, row in enumerate(layout.operands) if letter in row.dims)
            expected = f"{layout.dots(layout.operands[i].dims)}, {layout.written[letter]} >= 1"
            name = layout.operands[i].name
            raise ValueError(f"{function}: {name} has shape {shapes[i]}; expected {expected}")
    sizes = layout.sized(sizes)
    output = layout.output if tokens else layout.output.replace("n", "")
    shape = *batch, *(sizes[letter] for letter in output)
    core = tuple(sizes[letter] for letter in layout.state)
    rows = [row for row, x in zip(layout.operands, shapes, strict=False) if x is not None]
    typed = tuple(i for i, row in enumerate(rows) if not row.state_dtype)
    own = shape[len(batch) :]
    return Fit(shapes, tuple(narrow), typed, variant, batch, shape, sizes, core, own)


def _fit_elementwise(layout: Layout, function: str, shapes: tuple[Any, ...], tokens: bool) -> Fit:
    """The same where all axes broadcast."""
    letters = layout.output if tokens else layout.output.replace("n", "")
    named = _named(layout, shapes)
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(
            f"{function}: {layout.operands[0].name} has shape {shapes[0]}, which does not "
            f"broadcast with {_listed(named[1:])}; expected equal lengths, or 1, axis by axis"
        ) from None
    first = len(shape) - len(letters)
    if first < 0:
        raise ValueError(
            f"{function}: the shapes of {_listed(named)} broadcast to {shape}; expected "
            f"{layout.dots(letters)}"
        )
    sizes = dict(zip(letters, shape[first:], strict=True))
    core = tuple(sizes[letter] for letter in layout.state)
    typed = tuple(range(len(shapes)))
    return Fit(shapes, (), typed, "", shape[:first], shape, sizes, core, shape[first:])


def spread(x: Any, own: Shape) -> Any:
    """x with those axes of its own, behind its leading ones."""
    lead = x.shape[: max(x.ndim - len(own), 0)]
    return x if x.shape[len(lead) :] == own else np.broadcast_to(x, (*lead, *own))


def _misfit(
    layout: Layout, function: str, shapes: tuple[Shape | None, ...], sizes: dict[str, int],
    tokens: bool,
) -> ValueError:  # fmt: skip
    """The error for the last of the shapes, whose own axes have other lengths than ``sizes``."""
    row, shape = layout.operands[len(shapes) - 1], shapes[-1] or ()
    letters = row.letters(tokens=tokens)
    expected = layout.dots(letters, sizes)
    if row.channels:
        names = [other.name for other in layout.operands[: layout.leading]]
        expected += (
            f", or, one number a channel and as many axes as the longest of {_listed(names)}, "
            f"{layout.dots(letters + row.channels, sizes)}"
        )
    own = dict(zip(reversed(letters), reversed(shape), strict=False))
    known = [x for x in letters + row.channels if x in sizes and x not in layout.fixed]
    wrong = [letter for letter in known if own.get(letter) != sizes[letter]]
    for letter in (wrong or known)[:1]:
        i = next(i for i, other in enumerate(layout.operands) if letter in other.dims)
        expected += f", as {layout.operands[i].name} has shape {shapes[i]}"
    return ValueError(f"{function}: {row.name} has shape {shape}; expected {expected}")


def _leading(operands: Sequence[Operand]) -> int:
    """How many operands it takes to know the size of every letter."""
    seen: set[str] = set()
    count = 0
    for i, row in enumerate(operands):
        if not row.optional and not seen.issuperset(row.dims):
            seen.update(row.dims)
            count = i + 1
    return count


def _weak(function: str, row: Operand, x: Any, leading: Sequence[Any]) -> Any:
    """A number of Python's as an array, of a dtype that changes nothing."""
    dtype = (state_dtype if row.state_dtype else result_dtype)(*leading)
    with np.errstate(all="ignore"):
        if isinstance(x, complex):
            return np.asarray(x, np.result_type(dtype, np.complex64))
        return np.asarray(checks.real(function, row.name, x), real_dtype(dtype))


def _named(layout: Layout, shapes: Sequence[Shape | None]) -> list[str]:
    """The names and shapes of the first operands."""
    pairs = zip(layout.operands, shapes, strict=False)
    return [f"{row.name} {shape}" for row, shape in pairs if shape is not None]


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])


#: Queries, keys and values of the same tokens, and queries that see s keys.
SAME_TOKENS, ALL_KEYS = Layout.of("causal"), Layout.of("softmax")
