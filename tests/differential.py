"""Random calls of everything there is, against the float64 twin: as many as one likes, by a seed.

    python tests/differential.py --cases 100000
    python tests/differential.py --cases 100000 --seed 7 --first 250000 --isa x86-64-v2 --poison
    tests/sanitize.sh --script tests/differential.py --cases 50000 --poison

A case is drawn from the seed and its number alone, so that a run is resumed with ``--first`` and
shared out by ranges.  It draws an operator, its map, dtypes, sizes about the edges of tiles and
chunks, broadcasting, options, states, lengths and packing, NaN in padding, and how each operand
lies in memory, overlapping ``out`` included.  Each instruction set then runs it twice: on
contiguous copies by one thread, which must agree with the twin in a wider type, within the bounds
of `bounds`; and as drawn, by some threads, which must give the same bits and leave the operands
alone.

The first failure ends the run with the line that repeats it.  Status 0: all cases are right.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from random import Random
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from bounds import BACKWARD_SUM, DELTA_ROUNDINGS, FORWARD_SUM, softmax_units, twin_of
from layouts import LAYOUTS
from map_bounds import moved, spread
from ml_dtypes import bfloat16
from states import flat, units

import linattn
from linattn import State, _check, _config, _linattn, feature_maps
from linattn import _reference as ref
from linattn import _reference_delta as ref_delta
from linattn import _reference_maps as twins
from linattn import _reference_softmax as ref_softmax
from linattn._linattn import row_ufuncs
from linattn._reference import _sum_to

FUSED = ("identity", "relu", "elu", "softplus", "exp")
EDGES, FAR = (15, 16, 17, 31, 32, 33), (63, 64, 65, 100, 127, 128, 129, 200)
LEADS = ((), (), (), (1,), (2,), (3,), (2, 3), (3, 1), (2, 1, 2), (5,), (0,), (2, 0))
DTYPES = tuple(map(np.dtype, ("f4", "f8", "f2", bfloat16)))
MIXED = (*DTYPES, *map(np.dtype, ("i1", "u1", "i4", "i8", "?")))
ROWS = {"fortran", "features_first", "every_second_row", "rows_backwards"}  # layouts of matrices
OPERANDS = {
    "causal": "q k v",
    "noncausal": "q k v",
    "delta": "q k v beta",
    "softmax_attention": "q k v",
    "linformer": "q k v E F",
}
CORE = {"q": "nd", "k": "sd", "v": "sm", "beta": "n", "E": "sr", "F": "sr", "grad_out": "nm"}
FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "gate": lambda x, y: x / (1 + np.exp(-y)),
    "softplus_gate": lambda x, y: np.logaddexp(x, 0) / (1 + np.exp(-y)),
}


def working(dtype: np.dtype) -> np.dtype:
    """What results of that dtype are computed in."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


class Trial(NamedTuple):
    """One call.  Arrays are contiguous here; `ways` lays them out."""

    name: str
    f: Callable
    twin: Callable
    units: Callable  # of the expected results: their bounds in units of u
    operands: list[np.ndarray]
    ways: list[Callable]
    options: dict
    dtype: np.dtype
    threads: int
    out: tuple | None = None  # see draw_out
    state_ways: dict | None = None  # by the name of the option
    repeats: bool = False  # operands broadcast, over whose repeats gradients are summed
    alike: bool = False  # numbers are repeated

    @property
    def work(self) -> np.dtype:
        return working(self.dtype)

    def __str__(self):
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in self.operands)
        options = {
            name: [*map(np.shape, x)] if isinstance(x, State) else x
            for name, x in self.options.items()
        }
        return f"{self.name}({shapes}, {options}, out={self.out}, threads={self.threads})"


def expanded(first: tuple, x: np.ndarray) -> np.ndarray:
    """x, whose entries repeat those at `first`, without room for the repeats."""
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
        """Core sizes and leading axes: mostly small, now and then enough for several threads."""
        if self.chance(0.02):
            return {x: self.pick((33, 48, 64, 65)) for x in letters}, self.pick(((2, 4), (9,)))
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

    def array(self, shape: tuple, dtype: np.dtype, positive: bool = False):
        """Values, and the way in which they lie in memory."""
        inner = shape
        repeats = self.chance(0.1)
        self.alike |= repeats or dtype.kind in "biu"
        if repeats:
            inner = tuple(min(x, 1) if self.chance(0.4) else x for x in shape)
        if dtype.kind in "biu":
            low = 0 if positive or dtype.kind != "i" else -3
            x = self.rng.integers(low, 2 if dtype.kind == "b" else 4, inner).astype(dtype)
        else:
            x = self.rng.standard_normal(inner)
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

    def state(self, lead: tuple, core: tuple, dtype: np.dtype, normalize: bool, whole=False):
        """As `array`; a state is of its machine's order of bytes, and, whole, can be written."""
        without = ("byte_swapped", *(("read_only",) if whole else ()))
        some = (lambda lead: lead) if whole else self.narrow
        s, _ = self.array((*some(lead), *core), dtype)
        of_s = self.way(s, *without)
        if not normalize:
            return State(s), State(of_s)
        z, _ = self.array((*some(lead), *core[:-1]), dtype, positive=True)
        return State(s, z + dtype.type(0.125)), State(of_s, self.way(z, *without))

    def map(self, d: int, kinds: tuple) -> Any:
        """The name of a map, or an object."""
        if d == 0 or d > 17 or self.chance(0.8):
            return self.pick(FUSED)
        return map_object(self.pick(kinds), d)


KINDS = (
    "feedforward", "dpfp", "DPFP", "sum", "dpfp sum", "positive", "hyperbolic", "softplus", "elu",
)  # fmt: skip
SHORT = ("dpfp", "sum", "dpfp sum", "fourier")  # features of norm 1 at most, as delta wants keys


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


def twin_function(name: str) -> Callable:
    module = next(x for x in (ref, ref_delta, ref_softmax) if hasattr(x, name))
    f = getattr(module, name)

    def twin(*operands, **options):
        if "feature_map" in options:
            options["feature_map"] = twin_map(options["feature_map"])
        return f(*operands, **options)

    return twin


# Families of calls.


def attention(lot: Lot) -> Trial:
    name = lot.pick(tuple(OPERANDS))
    backward = lot.chance(0.5)
    linear, scans = name in ("causal", "noncausal"), name in ("causal", "delta")
    masked = name == "softmax_attention" and lot.chance(0.5)
    sizes, lead = lot.sizes(*"nsdm", *("r" if name == "linformer" else ""))
    if linear or scans:
        options = map_options(lot, sizes["d"], name)
    else:
        options = {"scale": lot.pick((None, 0.25, -1.0))}
        options |= {"causal": masked} if name == "softmax_attention" else {}
    if rescales(options):  # without eps an empty sum is no divisor
        sizes["n"], sizes["s"] = max(sizes["n"], 1), max(sizes["s"], 1)
    if scans or masked:
        sizes["s"] = sizes["n"]
    names = [*OPERANDS[name].split(), *(["grad_out"] if backward else [])]
    arrays, ways, batch = draw_operands(lot, names, CORE, sizes, lead, options)
    dtype, state_ways = _check.result_dtype(*arrays.values()), {}
    if scans:
        state_ways = scan_options(lot, arrays, ways, batch, options, backward)
    elif linear and lot.chance(0.3):
        key_lengths(lot, arrays, ways, batch, options)
    out = None
    if not backward and lot.chance(0.5):
        out = draw_out(lot, arrays.values(), (*batch, sizes["n"], sizes["m"]), dtype)
    bound = linear_units if linear else delta_units if name == "delta" else score_units
    name += "_backward" if backward else ""
    return call_of(
        lot, name, bound, arrays, ways, options, dtype,
        state_ways=state_ways, out=out,
    )  # fmt: skip


def step(lot: Lot) -> Trial:
    name = lot.pick(("step", "delta_step"))
    sizes, lead = lot.sizes(*"dm")
    options = map_options(lot, sizes["d"], "delta" if name == "delta_step" else name)
    names = OPERANDS["delta" if name == "delta_step" else "causal"].split()
    core = {x: letters.strip("ns") for x, letters in CORE.items()}
    arrays, ways, batch = draw_operands(lot, names, core, sizes, lead, options)
    dtype = _check.result_dtype(*arrays.values())
    normalize = options.get("normalize", False)
    f = features(options["feature_map"], sizes["d"])
    in_place = lot.chance(0.5) and not rescales(options)
    state, of_state = lot.state(batch, (f, sizes["m"]), working(dtype), normalize, whole=in_place)
    options |= {"state": state, "in_place": in_place}
    bound = delta_units if name == "delta_step" else step_units
    state_ways = {"state": of_state}
    return call_of(lot, name, bound, arrays, ways, options, dtype, state_ways=state_ways)


def call_of(lot, name, bound, arrays, ways, options, dtype, **more) -> Trial:
    """The call of a function of the package; `bound` of the trial and the expected results."""
    trial = Trial(
        name, lambda *x, **y: getattr(linattn, name)(*x, **y), twin_function(name), None,
        list(arrays.values()), list(ways.values()), options, dtype, lot.random.randint(1, 4),
        alike=lot.alike, repeats=lot.repeats, **more,
    )  # fmt: skip
    return trial._replace(units=partial(bound, trial))


def draw_operands(lot, names, core, sizes, lead, options) -> tuple[dict, dict, tuple]:
    """Arrays, their ways, and the leading axes of the call; `core` has the letters of the rest."""
    phi, dtypes = options.get("feature_map"), lot.dtypes(names)
    positive = phi == "identity" and options.get("normalize", False)  # no sum of weights near 0
    leads = {x: lot.narrow(lead) for x in names}
    cores = {x: tuple(sizes[y] for y in core[x]) for x in names}
    if "beta" in names:
        if dtypes["k"] not in DTYPES:
            dtypes["k"] = DTYPES[0]  # integers have no norm of 1
        longest = max(len(leads[x]) for x in "qkv")
        some = leads["beta"][max(len(leads["beta"]) - longest, 0) :]
        if lot.chance(0.5):  # one a channel, with as many axes as the longest
            some = (1,) * (longest - len(some)) + some
            cores["beta"] += (lot.pick((sizes["m"], 1)),)
        leads["beta"] = some
    batch = np.broadcast_shapes(*(leads[x] for x in names if x != "grad_out"))
    if "grad_out" in names:
        leads["grad_out"] = lot.narrow(batch)
    lot.repeats = any(lead != batch for lead in leads.values())
    arrays, ways = {}, {}
    for x in names:
        arrays[x], ways[x] = lot.array((*leads[x], *cores[x]), dtypes[x], positive and x in "qk")
    if "beta" in names:
        arrays["beta"] = (abs(arrays["beta"].astype(float)) % 2).astype(dtypes["beta"])
        arrays["k"] = short_keys(arrays["k"].astype(float), phi).astype(dtypes["k"])
    return arrays, ways, batch


def scan_options(lot, arrays, ways, batch, options, backward) -> dict:
    """Packing, lengths and states, added to the options; the states' ways."""
    n, d = arrays["q"].shape[-2:]
    r = ()
    if lot.chance(0.3) and not rescales(options):
        cuts = sorted(lot.random.randint(0, n) for _ in range(lot.random.randint(0, 4)))
        options["cu_seqlens"] = lot.pick((list, np.array))([0, *cuts, n])
        r = (len(cuts) + 1,)
    if lot.chance(0.3):
        key_lengths(lot, arrays, ways, batch, options)
    core = (*r, features(options["feature_map"], d), arrays["v"].shape[-1])
    dtype = working(_check.result_dtype(*arrays.values()))
    state_ways = {}
    for key in ("initial_state", "grad_state")[: 1 + backward]:
        if lot.chance(0.4):
            normalize = options.get("normalize", False)
            options[key], state_ways[key] = lot.state(batch, core, dtype, normalize)
    if not backward:
        options["return_state"] = lot.chance(0.5)
    return state_ways


def key_lengths(lot, arrays, ways, batch, options) -> None:
    """Lengths, added to the options, and mostly NaN or inf in what exists for no head."""
    if rescales(options):
        return
    lengths = lot.rng.integers(0, arrays["k"].shape[-2] + 1, lot.narrow(batch))
    options["key_lengths"] = lengths.astype(lot.pick(("i8", "i4", "u2")))
    if prod(batch) == 0 or lot.chance(0.3):
        return
    axes = max(arrays[x].ndim for x in "qkv")
    for name in ("k", "v", "beta"):
        x = arrays.get(name)
        if x is None or x.dtype.kind in "biu" or isinstance(ways[name], partial):
            continue
        x = x if name != "beta" or x.ndim >= axes else x[..., None]  # one axis after the tokens
        lead = x.shape[:-2]
        longest = np.broadcast_to(lengths, batch).max(tuple(range(len(batch) - len(lead))))
        shared = tuple(i for i, size in enumerate(lead) if size == 1)
        longest = np.asarray(longest).max(shared, keepdims=True)
        padding = np.arange(x.shape[-2]) >= longest[..., None]
        x[np.broadcast_to(padding, x.shape[:-1])] = lot.pick((np.nan, np.inf))


def feature_map(lot: Lot) -> Trial:
    backward = lot.chance(0.5)
    sizes, lead = lot.sizes(*"nd")
    d = sizes["d"] = min(max(sizes["d"], 1), 65)
    kinds = (*KINDS, "fourier") if backward else (*KINDS, "fourier", "relu")
    phi = feature_maps.get(lot.pick(FUSED) if lot.chance(0.4) else map_object(lot.pick(kinds), d))
    exact = twins.twin(phi)
    names = ("x", "grad") if backward else ("x",)
    dtypes = lot.dtypes(names)
    shapes = {"x": (*lead, sizes["n"], d), "grad": (*lead, sizes["n"], phi.features(d))}
    pairs = [lot.array(shapes[x], dtypes[x]) for x in names]
    operands, ways = map(list, zip(*pairs, strict=True))
    dtype = _check.state_dtype(operands[0])
    trial = Trial(
        f"{phi}{'.backward' if backward else ''}",
        phi.input_gradient if backward else phi, exact.backward if backward else exact, None,
        operands, ways, {}, dtype, lot.random.randint(1, 4),
    )  # fmt: skip

    # Sums over all features may be of equal terms, which round one way.
    more = phi.features(d) if lot.alike else 0

    def bound(expected):
        x, *g = (x.astype(float) for x in operands)
        if g:
            return [(BACKWARD_SUM + more) * spread(exact, x, abs(g[0]))]
        return [(FORWARD_SUM + more) * (abs(expected[0]) + moved(exact, x))]

    return trial._replace(units=bound)


def function(lot: Lot) -> Trial:
    name = lot.pick(tuple(FUNCTIONS))
    f = FUNCTIONS[name]
    sizes, lead = lot.sizes(*"nd")
    dtype = lot.pick(DTYPES[:2])
    shape = (*lead, *sizes.values())
    pairs = [lot.array(shape, dtype, name == "log1p") for _ in range(1 + name.endswith("gate"))]
    operands, ways = map(list, zip(*pairs, strict=True))
    out = draw_out(lot, operands, shape, dtype) if lot.chance(0.5) else None
    return Trial(
        name, row_ufuncs[name], f, lambda expected: [16 * abs(x) for x in expected],
        operands, ways, {}, dtype, lot.random.randint(1, 4), out,
    )  # fmt: skip


FAMILIES = (attention,) * 15 + (step,) * 4 + (feature_map,) * 2 + (function,)


def draw(seed: int, number: int) -> Trial:
    lot = Lot(seed, number)
    return lot.pick(FAMILIES)(lot)


def map_options(lot: Lot, d: int, name: str) -> dict:
    scale = lot.pick((1.0, 1.0, 0.5, 0.3))
    if name == "delta":
        return {"feature_map": lot.map(d, SHORT), "scale": scale}
    normalize = lot.chance(0.6)
    kinds = KINDS if normalize else (*KINDS, "fourier")
    phi = lot.map(d, kinds if name != "step" else kinds[1:])  # a feedforward map wants tokens
    scale = scale if normalize or lot.chance(0.7) else -1.5
    options = {"feature_map": phi, "normalize": normalize, "scale": scale}
    return options | {"eps": 0.0 if rescales(options) else lot.pick((1e-6, 0.01, 1.0))}


def rescales(options: dict) -> bool:
    """Whether eps is relative: 0 then, as the twin knows only the absolute."""
    phi = options.get("feature_map")
    return options.get("normalize", False) and isinstance(phi, feature_maps.PositiveRandomFeatures)


def features(phi, d: int) -> int:
    return feature_maps.get(phi).features(d)


def short_keys(k, phi):
    """Of norm 1 at most behind their map."""
    if phi in ("identity", "relu"):
        return 0.99 * k / (np.linalg.norm(k, axis=-1, keepdims=True) + 1e-30)
    if phi not in FUSED:
        return k
    k = k - 0.5 * np.log(max(k.shape[-1], 1)) - 2
    norm = np.linalg.norm(np.exp(k), axis=-1, keepdims=True)  # no map is above exp
    return k - np.log(np.maximum(norm, 1))


def draw_out(lot: Lot, arrays, shape: tuple, dtype: np.dtype) -> tuple:
    """(shape, way, index of the operand that it overlaps or None, where the two begin)."""
    alike = [i for i, x in enumerate(arrays) if x.dtype == dtype]
    if alike and lot.chance(0.5):
        begin = lot.random.randint(0, 9)
        return shape, None, lot.pick(alike), (begin, lot.pick((begin, lot.random.randint(0, 9))))
    return shape, lot.pick([x for x in LAYOUTS if x not in ("read_only", "byte_swapped")]), None, ()


# Bounds in units of u.


def _clean(trial: Trial) -> list[np.ndarray]:
    """Operands without what padding holds."""
    return [np.nan_to_num(x.astype(float), nan=0, posinf=0) for x in trial.operands]


def linear_units(trial: Trial, expected) -> list:
    options = trial.options | {"feature_map": twin_map(trial.options["feature_map"])}
    result = terms(trial, units(trial.name, _clean(trial), **options))
    if len(result) > 3 and "initial_state" in options:
        start = trial.options["initial_state"]
        core = 2 + ("cu_seqlens" in options)
        result[3] = _sum_to(result[3], start.s, core)
        if len(result) > 4:
            result[4] = _sum_to(result[4], start.z, core - 1)
    return result


def terms(trial: Trial, result: list) -> list:
    """Terms of one sign are summed one after the other along the features, f of them: about sqrt(f)
    roundings more.  Terms that are equal round one way: 32 u without a normaliser too, and f more.
    """
    phi, normalize = trial.options["feature_map"], trial.options["normalize"]
    f = features(phi, trial.operands[0].shape[-1])
    least = 32 if normalize else 8
    factor = (max(least, 32) + f if trial.alike else least + f**0.5) / least
    if rescales(trial.options):  # exponents are taken from others of their size
        factor *= 2
    return [factor * x for x in result]


def step_units(trial: Trial, expected) -> list:
    options = {key: x for key, x in trial.options.items() if key not in ("state", "in_place")}
    options["feature_map"] = twin_map(options["feature_map"])
    rows = [x[..., None, :] for x in _clean(trial)]
    start = trial.options["state"]
    o, *state = units("causal", rows, **options, initial_state=start, return_state=True)
    return terms(trial, [o[..., 0, :], *state])


def delta_units(trial: Trial, expected) -> list:
    """Some roundings of the largest number there is, of any head."""
    q, k, v, _, *g = _clean(trial)
    phi, scale = twin_map(trial.options["feature_map"]), abs(trial.options["scale"])
    top = lambda *arrays: max(abs(x).max(initial=0) for x in arrays)  # noqa: E731
    a = abs(phi(q))
    states = [x.s for x in trial.options.values() if isinstance(x, State)]
    length = lambda x: top(np.linalg.norm(x, axis=-1))  # noqa: E731
    # A key of norm x needs a memory of v / x to answer with v.
    norm = np.linalg.norm(phi(k)) / max(prod(k.shape[:-1]), 1) ** 0.5
    held = max(top(v) / max(norm, 0.1), *map(top, states), 0.0)
    natural = [*expected, np.float64(held), np.float64(scale * length(a) * held)]
    steep = 1.0
    if g:
        pulled = scale * top(a) * top(*g) + (top(*states) if states else 0)
        natural += [scale * length(g[0]) * held, pulled * max(length(v), 1.0, held)]
        steep = max(1.0, *(top(spread(phi, x, np.ones(phi(x).shape))) for x in (q, k)))
    if not isinstance(phi, twins.Elementwise):
        steep *= 1 + max(top(moved(phi, x)) / (top(phi(x)) or 1) for x in (q, k))
    heads = prod(np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))) if g else 1
    count = DELTA_ROUNDINGS * steep * max(heads, 1)
    return [np.full(x.shape, count * top(*map(np.asarray, natural))) for x in expected]


def score_units(trial: Trial, expected) -> list:
    operands, scale = _clean(trial), trial.options["scale"]
    if trial.alike:  # equal terms, which round one way, of sums over keys, queries and features
        longest = max(max(x.shape[-2:]) for x in operands)
        operands[-1] = operands[-1] * (1 + longest / FORWARD_SUM)  # the bound is linear in it
    if not trial.name.startswith("linformer"):
        result = softmax_units(operands, trial.options["causal"], scale)
        if len(result) == 1:
            return result
        return [_sum_to(x, y) for x, y in zip(result, operands, strict=False)]
    q, k, v, E, F, *g = operands
    keys, values = E.mT @ k, F.mT @ v
    E, F, k, v = map(abs, (E, F, k, v))
    result = softmax_units((q, keys, values, *g), False, scale, (E.mT @ k, F.mT @ v))
    if not g:
        return result
    dq, dkeys, dvalues = result
    result = dq, E @ dkeys, F @ dvalues, k @ dkeys.mT, v @ dvalues.mT
    return [_sum_to(x, y) for x, y in zip(result, operands, strict=False)]


# Running and comparing.


def run(trial: Trial, plainly: bool) -> list[np.ndarray]:
    """The results; as drawn, the operands are looked at afterwards.

    Everything is copied, as some ways to lay an array out leave a small one where it is.
    """
    options = dict(trial.options)
    for key, x in options.items():
        if isinstance(x, State):
            ways = (np.copy, np.copy) if plainly else trial.state_ways[key]
            arrays = zip(x[:2], ways[:2], strict=True)
            options[key] = State(*(y if y is None else way(y.copy()) for y, way in arrays))
    given = options.get("state") if options.get("in_place") else None
    if plainly:
        linattn.set_num_threads(1)
        return flat(trial.f(*map(np.copy, trial.operands), **options))
    linattn.set_num_threads(trial.threads)
    operands = [way(x.copy()) for x, way in zip(trial.operands, trial.ways, strict=True)]
    shared = None
    if trial.out:
        shape, way, shared, begins = trial.out
        if shared is None:
            out = LAYOUTS[way](np.full(shape, np.nan, trial.dtype))
        else:
            operands[shared], out = overlapping(trial.operands[shared], shape, begins)
        options["out"] = out
    result = trial.f(*operands, **options)
    for i, (x, y) in enumerate(zip(operands, trial.operands, strict=True)):
        if i != shared and not np.array_equal(x, y, equal_nan=y.dtype.kind not in "biu"):
            raise AssertionError(f"operand {i} was written to")
    if trial.out and (result[0] if isinstance(result, tuple) else result) is not out:
        raise AssertionError("the result is not out")
    if given is not None and result[1] is not given:
        raise AssertionError("the state is not the one given")
    return flat(result)


def overlapping(x: np.ndarray, shape: tuple, begins: tuple):
    """A copy of x and an array of that shape in one piece of memory."""
    memory = np.zeros(max(x.size, prod(shape)) + max(begins), x.dtype)
    views = [
        memory[begin : begin + prod(y)].reshape(y)
        for begin, y in zip(begins, (x.shape, shape), strict=True)
    ]
    views[0][...] = x
    return views


def check(trial: Trial, isas: tuple[str, ...]) -> None:
    """Raises AssertionError where a result is wrong."""
    wide = np.longdouble if trial.work == np.float64 else np.float64
    exact = {
        key: State(*(y if y is None else y.astype(wide) for y in x)) if isinstance(x, State) else x
        for key, x in trial.options.items()
        if key != "in_place"
    }
    expected = flat(trial.twin(*(x.astype(wide) for x in trial.operands), **exact))
    allowed = None
    for isa in isas:
        linattn.set_isa(isa)
        plain = run(trial, plainly=True)
        if allowed is None:
            allowed = allowances(trial, expected, plain)
        for i, (x, y, slack) in enumerate(zip(plain, expected, allowed, strict=False)):
            compare(isa, i, x, y, slack)
        for i, (x, y) in enumerate(zip(run(trial, plainly=False), plain, strict=True)):
            same(isa, i, x, y)


def allowances(trial: Trial, expected: list, plain: list) -> list[np.ndarray]:
    """What each array may be off by, after its shape and dtype were looked at."""
    tokens = len(trial.operands) - 1 if trial.name.endswith("_backward") else 1  # others are states
    info = np.finfo(trial.work)
    allowed = []
    pairs = zip(plain, expected, trial.units(expected), strict=False)
    for i, (x, y, size) in enumerate(pairs):
        dtype = trial.dtype if i < tokens else trial.work
        if x.shape != y.shape or x.dtype != dtype:
            raise AssertionError(f"array {i} is {x.dtype}{x.shape}, not {dtype}{y.shape}")
        slack = float(info.eps) / 2 * size + 1e8 * float(info.tiny)
        if dtype.itemsize == 2:
            half = ml_dtypes.finfo(dtype)
            unit = float(half.eps) / 2
            slack = slack + unit * (abs(y) + (size if trial.repeats else 0)) * (1 + unit)
            slack = slack + float(half.smallest_subnormal)
            slack = np.where(abs(y) + slack < float(half.max), slack, np.inf)
        allowed.append(slack)
    return allowed


def compare(isa: str, i: int, x, y, slack) -> None:
    if x.size == 0:
        return
    error = abs(x.astype(y.dtype) - y)
    wrong = ~((error <= slack) | (slack == np.inf))
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        ratio = float(np.max(np.where(wrong, error / slack, 0)))
        raise AssertionError(
            f"{isa}: array {i} at {tuple(map(int, at))} is {x[at]}, not {y[at]}: "
            f"{ratio:.3g} times what is allowed; {int(wrong.sum())} of {wrong.size}"
        )


def same(isa: str, i: int, x, y) -> None:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise AssertionError(f"{isa}: array {i} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}")
    if x.tobytes() != y.tobytes():
        nan = np.isnan(x.astype(float)) & np.isnan(y.astype(float))
        differ = ~nan & ((x != y) | (np.signbit(x.astype(float)) != np.signbit(y.astype(float))))
        if differ.any():
            at = np.unravel_index(int(np.argmax(differ)), differ.shape)
            raise AssertionError(
                f"{isa}: array {i} at {tuple(map(int, at))} is {x[at]}, and {y[at]} "
                f"on contiguous copies; {int(differ.sum())} of {differ.size}"
            )


def failure(seed: int, number: int, isas: tuple[str, ...]) -> str | None:
    """What is wrong with a case, and the line that repeats it; None where all is right."""
    trial = None
    try:
        with np.errstate(all="ignore"):
            trial = draw(seed, number)
            check(trial, isas)
    except Exception as error:
        again = f"python tests/differential.py --seed {seed} --first {number} --cases 1"
        return f"{again}\n  {trial}\n  {type(error).__name__}: {error}"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--isa", choices=_config.available_isas(), help="all by default")
    parser.add_argument("--poison", action="store_true", help="fill scratch with NaN")
    parser.add_argument("--keep-going", action="store_true", help="past what fails")
    chosen = parser.parse_args(arguments)
    isas = (chosen.isa,) if chosen.isa else _config.available_isas()
    _linattn.poison_scratch(0xFF if chosen.poison else 0)
    start, failed = time.monotonic(), 0
    for number in range(chosen.first, chosen.first + chosen.cases):
        if message := failure(chosen.seed, number, isas):
            failed += 1
            print(message, flush=True)
            if not chosen.keep_going:
                break
        if number % 10_000 == 9_999:
            print(f"up to {number}: {time.monotonic() - start:.0f} s", flush=True)
    done = number + 1 - chosen.first
    print(
        f"{done} cases on each of {', '.join(isas)}: {failed} failed, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
