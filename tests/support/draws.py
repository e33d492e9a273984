"""The parts of random calls: `Trial`, and `Lot`, which draws arrays, layouts and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from math import prod
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from bounds import twin_of
from cases import MAPS
from layouts import LAYOUTS
from ml_dtypes import bfloat16

import linattn
from linattn import State, feature_maps
from linattn._cli import selftest
from linattn.operators.registry import RECURRENCES
from linattn.reference import maps as twins

EDGES, FAR = (15, 16, 17, 31, 32, 33), (63, 64, 65, 100, 127, 128, 129, 200)
LEADS = ((), (), (), (1,), (2,), (3,), (2, 3), (3, 1), (2, 1, 2), (5,), (0,), (2, 0))
DTYPES = tuple(map(np.dtype, ("f4", "f8", "f2", bfloat16)))
MIXED = (*DTYPES, *map(np.dtype, ("i1", "u1", "i4", "i8", "?")))
TWINS = selftest.OPERATORS
#: Layouts of matrices.
ROWS = {
    "fortran", "features_first", "features_first_backwards", "every_second_row", "rows_backwards",
}  # fmt: skip


def working(dtype: np.dtype) -> np.dtype:
    """The dtype in which results of a dtype are computed."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


class Trial(NamedTuple):
    """One call.  Arrays are contiguous here; `ways` lays them out."""

    name: str
    f: Callable
    twin: Callable
    units: Callable  # of the expected results: their bounds in units of u
    names: tuple[str, ...]  # of the operands
    operands: list[np.ndarray]
    ways: list[Callable]
    options: dict
    dtype: np.dtype
    threads: int
    out: tuple | None = None  # see draw_out
    state_ways: Mapping = MappingProxyType({})  # by the name of the option
    repeats: bool = False  # operands broadcast, over whose repeats gradients are summed
    alike: bool = False  # numbers are repeated

    @property
    def work(self) -> np.dtype:
        return working(self.dtype)

    @property
    def dtypes(self) -> list[np.dtype]:
        """The dtypes of the results, then those of the states."""
        if not self.name.endswith("_backward"):
            return [self.dtype]
        names = [name for name in self.names if not name.startswith("grad")]
        wide = wide_operands(self.name.removesuffix("_backward"))
        return [self.work if name in wide else self.dtype for name in names]

    def __str__(self):
        pairs = zip(self.names, self.operands, strict=True)
        shapes = ", ".join(f"{name} {x.dtype}{list(x.shape)}" for name, x in pairs)
        options = {
            name: [*map(np.shape, x)]
            if isinstance(x, tuple)
            else x.shape
            if name in self.state_ways
            else x
            for name, x in self.options.items()
        }
        return f"{self.name}({shapes}, {options}, out={self.out}, threads={self.threads})"


def expanded(first: tuple, x: np.ndarray) -> np.ndarray:
    """A view of the shape of x that repeats its entries at `first`, with strides of 0."""
    return np.broadcast_to(x[first].copy(), x.shape)


class Lot:
    """What a case draws."""

    def __init__(self, seed: int, number: int) -> None:
        self.random = Random(f"{seed} {number}")
        self.rng = np.random.default_rng([seed, number])
        self.pick, self.chance = self.random.choice, lambda p: self.random.random() < p
        self.alike = False  # whether an array repeats numbers
        self.repeats = False  # whether an operand is broadcast

    def size(self) -> int:
        x = self.random.random()
        if x < 0.03:
            return 0
        if x < 0.1:
            return 1
        if x < 0.7:
            return self.random.randint(2, 12)
        return self.pick(EDGES if x < 0.95 else FAR)

    def sizes(self, *letters: str) -> tuple[dict, tuple]:
        """Core sizes and leading axes: mostly small, now and then enough for several threads, or a
        sequence so long that it is cut (`differential.CHUNKS`)."""
        if self.chance(0.02):
            return {x: self.pick((33, 48, 64, 65)) for x in letters}, self.pick(((2, 4), (9,)))
        if "n" in letters and self.chance(0.01):
            sizes = {x: self.random.randint(1, 40) for x in letters}
            return sizes | {"n": self.pick((512, 577, 1100))}, self.pick(((), (), (2,)))
        sizes = {x: self.size() for x in letters}
        lead = self.pick(LEADS)
        while prod(lead) * prod(1 + x for x in sizes.values()) > 1e6:
            if lead:
                lead = lead[1:]
            else:
                largest = max(sizes, key=sizes.get)
                sizes[largest] //= 2
        return sizes, lead

    def narrow(self, lead: tuple) -> tuple:
        """Leading axes that broadcast to `lead`."""
        if self.chance(0.6):
            return lead
        some = tuple(1 if self.chance(0.5) else x for x in lead)
        while some and some[0] == 1 and self.chance(0.5):
            some = some[1:]
        return some

    def dtypes(self, names) -> dict:
        if self.chance(0.2):
            return {name: self.pick(MIXED) for name in names}
        dtype = self.random.choices(DTYPES, (4, 3, 2, 2))[0]
        return dict.fromkeys(names, dtype)

    def array(self, shape: tuple, dtype: np.dtype, positive: bool = False, values=None):
        """An array from `values`, or normally distributed, and its memory layout."""
        inner = shape
        repeats = self.chance(0.1)
        self.alike |= repeats or dtype.kind in "biu"
        if repeats:
            inner = tuple(min(x, 1) if self.chance(0.4) else x for x in shape)
        if dtype.kind in "biu":
            low = 0 if positive or dtype.kind != "i" else -3
            x = self.rng.integers(low, 2 if dtype.kind == "b" else 4, inner).astype(dtype)
        else:
            x = (values or self.rng.standard_normal)(inner)
            x = (abs(x) if positive else x).astype(dtype)
        if repeats:
            first = tuple(slice(None, y) for y in inner)
            return np.broadcast_to(x, shape).copy(), partial(expanded, first)
        return x, self.way(x)

    def way(self, x: np.ndarray, *without: str) -> Callable:
        if x.ndim == 0 or self.chance(0.3):
            return np.copy
        names = [name for name in LAYOUTS if x.ndim > 1 or name not in ROWS]
        if x.dtype == bfloat16:  # it has one order of bytes only
            without = (*without, "byte_swapped")
        return LAYOUTS[self.pick([name for name in names if name not in without])]

    def state(
        self, lead: tuple, core: tuple, dtype: np.dtype, normalize: bool, whole=False,
        stacked=False,
    ):  # fmt: skip
        """Like `array`; a state has native byte order and, if `whole`, is writeable.

        Its z is a sum of keys, or another array like s if `stacked`.
        """
        without = ("byte_swapped", *(("read_only",) if whole else ()))
        some = (lambda lead: lead) if whole else self.narrow
        s, _ = self.array((*some(lead), *core), dtype)
        of_s = self.way(s, *without)
        if stacked:
            z, _ = self.array((*some(lead), *core), dtype)
            return State(s, z), State(of_s, self.way(z, *without))
        if not normalize:
            return State(s), State(of_s)
        z, _ = self.array((*some(lead), *core[:-1]), dtype, positive=True)
        return State(s, z + dtype.type(0.125)), State(of_s, self.way(z, *without))

    def map(self, d: int, kinds: tuple) -> Any:
        """The name of a map, or an object."""
        if d == 0 or d > 17 or self.chance(0.8):
            return self.pick(MAPS)
        return map_object(self.pick(kinds), d)


@lru_cache(None)
def map_object(kind: str, d: int) -> Any:
    if kind == "dpfp":
        return kind
    if kind == "DPFP":
        return feature_maps.DPFP(nu=2, normalize=False)
    if kind == "dpfp sum":
        return feature_maps.DPFP(nu=3)
    if kind == "sum":
        return feature_maps.get("exp").normalized()
    if kind == "fourier":
        return feature_maps.RandomFourierFeatures.sample(d, 7, rng=d)
    if kind in ("positive", "hyperbolic"):
        hyperbolic = kind == "hyperbolic"
        return feature_maps.PositiveRandomFeatures.sample(d, 9, rng=d, hyperbolic=hyperbolic)
    if kind == "feedforward":
        w = np.random.default_rng(d).standard_normal((4, d, d)) / d**0.5
        return feature_maps.FeedforwardKernel([(w[0], w[1]), (w[2], w[3, :, :1], w[3, :1])])
    return feature_maps.GeneralizedRandomFeatures.sample(d, 11, rng=d, fn=kind)


def twin_map(feature_map):
    return twins.DPFP() if feature_map == "dpfp" else twin_of(feature_map)


def wide_operands(name: str) -> set[str]:
    """The operands of a recurrence that have the dtype of states, not that of the call."""
    rows = RECURRENCES[name].operands if name in RECURRENCES else ()
    return {x.name for x in rows if x.state_dtype}


def twin_function(name: str) -> Callable:
    f = TWINS[name]

    def twin(*operands, **options):
        if "feature_map" in options:
            options["feature_map"] = twin_map(options["feature_map"])
        return f(*operands, **options)

    return twin


def call_of(lot, name, bound, arrays, ways, options, dtype, **more) -> Trial:
    """A call of a function of the package; `bound` takes the trial and the expected results."""

    def f(*operands, **options):
        return getattr(linattn, name)(**dict(zip(arrays, operands, strict=True)), **options)

    twin = twin_function(name)
    trial = Trial(
        name, f, lambda *x, **y: twin(**dict(zip(arrays, x, strict=True)), **y), None,
        tuple(arrays), list(arrays.values()), list(ways.values()), options, dtype,
        lot.random.randint(1, 4), alike=lot.alike, repeats=lot.repeats, **more,
    )  # fmt: skip
    return trial._replace(units=partial(bound, trial))


def clean(trial: Trial) -> dict[str, np.ndarray]:
    """The operands, with padding cleared."""
    with np.errstate(invalid="ignore"):
        return {
            name: np.nan_to_num(x.astype(float), nan=0, posinf=0)
            for name, x in zip(trial.names, trial.operands, strict=True)
        }


def laid(state, ways):
    """A copy of a state or an array, with each array in its own layout or all in one layout."""
    if not isinstance(state, tuple):
        return ways(state.copy())
    ways = ways if isinstance(ways, tuple) else (ways,) * len(state)
    pairs = zip(state, ways, strict=True)
    return type(state)(*(y if y is None else way(y.copy()) for y, way in pairs))


def draw_out(lot: Lot, arrays, shape: tuple, dtype: np.dtype) -> tuple:
    """(shape, way, index of the operand that it overlaps or None, where the two begin)."""
    alike = [i for i, x in enumerate(arrays) if x.dtype == dtype]
    if alike and lot.chance(0.5):
        begin = lot.random.randint(0, 9)
        return shape, None, lot.pick(alike), (begin, lot.pick((begin, lot.random.randint(0, 9))))
    return shape, lot.pick([x for x in LAYOUTS if x not in ("read_only", "byte_swapped")]), None, ()


def cuts(lot: Lot, n: int) -> list[int]:
    """Boundaries of sequences packed along n."""
    inner = sorted(lot.random.randint(0, n) for _ in range(lot.random.randint(0, 4)))
    return lot.pick((list, np.array))([0, *inner, n])


def spoil(lot: Lot, x: np.ndarray, lengths: np.ndarray, batch: tuple) -> None:
    """NaN or inf in the tokens of x (..., n, channels) that are past the length of every head."""
    lead = x.shape[:-2]
    longest = np.broadcast_to(lengths, batch).max(tuple(range(len(batch) - len(lead))))
    shared = tuple(i for i, size in enumerate(lead) if size == 1)
    longest = np.asarray(longest).max(shared, keepdims=True)
    padding = np.arange(x.shape[-2]) >= longest[..., None]
    x[np.broadcast_to(padding, x.shape[:-1])] = lot.pick((np.nan, np.inf))


def rescales(options: dict) -> bool:
    """Whether eps is relative.  Such calls use eps = 0, since the twin's eps is absolute."""
    phi = options.get("feature_map")
    return options.get("normalize", False) and isinstance(phi, feature_maps.PositiveRandomFeatures)


def features(phi, d: int) -> int:
    return feature_maps.get(phi).features(d)
