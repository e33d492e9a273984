"""Random calls of the operators that take queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from cases import MAPS, SIGNED, vanishes
from draws import (
    DTYPES,
    Lot,
    Trial,
    call_of,
    cuts,
    draw_out,
    features,
    rescales,
    spoil,
    twin_map,
    wide_operands,
    working,
)
from draws_bounds import delta_units, gated_units, linear_units, score_units, step_units
from table import ATTENTION, GATES

from linattn._core.dtypes import result_dtype
from linattn.operators import registry


class Row(NamedTuple):
    """An operator: its operands, those that may be left out, its step, and the bounds."""

    operands: str
    bound: Callable
    optional: str = ""
    step: str = ""
    bound_of_step: Callable | None = None

    @property
    def removes(self) -> bool:
        """Whether a token erases what its key reads from the memory."""
        return self.bound is delta_units


#: Bounds of sequences and of steps where they are not those of recurrences that erase.
BOUNDS = {
    "causal": (linear_units, step_units),
    "gated": (gated_units, None),
    "ssd": (gated_units, None),
}


def _rows() -> dict[str, Row]:
    """The recurrences of the registry that have states."""
    rows = {}
    for r in dict.fromkeys(x.row for x in ATTENTION):
        needed, optional = (
            " ".join(x.name for x in r.operands if x.optional is left_out)
            for left_out in (False, True)
        )
        bound, of_step = BOUNDS.get(r.name, (delta_units, None))
        rows[r.name] = Row(needed, bound, optional, r.names["step"], of_step)
    return rows


RECURRENCES = _rows()
#: Operands held as states are: they have no say in the dtype of a call.
WIDE = set().union(*map(wide_operands, RECURRENCES))
METHODS = {name: r for r in registry.RECURRENCES.values() for name in r.names.values()}
OPERANDS = RECURRENCES | {
    "noncausal": Row("q k v", linear_units),
    "softmax_attention": Row("q k v", score_units),
    "linformer": Row("q k v E F", score_units),
}
#: Axes: n queries, s keys, d channels, m of them in values, f features, r of Linformer.
#: Operands besides q, k and v, and their channels, are as wide as features.
EXTRAS = {x.name: x for x in RECURRENCES for x in registry.RECURRENCES[x].extras}
CORE = {name: x.dims.replace("d", "f") for name, x in EXTRAS.items()} | {
    "q": "nd", "k": "sd", "v": "sm", "E": "sr", "F": "sr", "grad_out": "nm",
}  # fmt: skip
#: By operator: the letter of the channels that an operand may have.
CHANNELS = {
    name: {
        x.name: x.channels.replace("d", "f")
        for x in registry.RECURRENCES[name].extras
        if x.channels
    }
    for name in RECURRENCES
}
SHORT = ("dpfp", "sum", "dpfp sum", "fourier")  # features of norm 1 at most, as erasing wants keys
KINDS = (
    "feedforward", "dpfp", "DPFP", "sum", "dpfp sum", "positive", "hyperbolic", "softplus", "elu",
)  # fmt: skip
#: Tokens of a block: parts of a chunk, whole ones, several, all tokens.
BLOCKS = (1, 2, 3, 4, 5, 8, 13, 16, 17, 20, 32, 33, 50, 64, 100, 10**30)


def attention(lot: Lot) -> Trial:
    """A sequence, or its gradients."""
    name = lot.pick((*OPERANDS, "gated", "gated_delta", "dplr"))
    row, backward = OPERANDS[name], lot.chance(0.5)
    scans, masked = name in RECURRENCES, name == "softmax_attention" and lot.chance(0.5)
    sizes, lead = lot.sizes(*"nsdm", *("r" if name == "linformer" else ""))
    if row.bound is score_units:
        options = {"scale": lot.pick((None, 0.25, -1.0))}
        options |= {"causal": masked} if name == "softmax_attention" else {}
    else:
        options = map_options(lot, sizes["d"], name)
    if rescales(options):  # without eps an empty sum is no divisor
        sizes["n"], sizes["s"] = max(sizes["n"], 1), max(sizes["s"], 1)
    if scans or masked:
        sizes["s"] = sizes["n"]
    names = [*operands_of(lot, row), *(["grad_out"] if backward else [])]
    wide = CHANNELS.get(name, {})
    arrays, ways, batch = draw_operands(lot, names, CORE, wide, sizes, lead, options)
    dtype, state_ways = dtype_of(arrays), {}
    if scans:
        stacked = METHODS[name].stacked
        state_ways = scan_options(lot, arrays, ways, batch, wide, options, backward, stacked)
        if METHODS[name].blocks and "bonus" not in arrays and not rescales(options):
            options |= {"block": lot.pick(BLOCKS)} if lot.chance(0.3) else {}
    elif name == "noncausal" and lot.chance(0.3):
        key_lengths(lot, arrays, ways, batch, wide, options)
    out = None
    if not backward and lot.chance(0.5):
        out = draw_out(lot, arrays.values(), (*batch, sizes["n"], sizes["m"]), dtype)
    name += "_backward" if backward else ""
    return call_of(
        lot, name, row.bound, arrays, ways, options, dtype,
        state_ways=state_ways, out=out,
    )  # fmt: skip


def step(lot: Lot) -> Trial:
    """A token."""
    name = lot.pick(tuple(RECURRENCES))
    row = RECURRENCES[name]
    sizes, lead = lot.sizes(*"dm")
    options = map_options(lot, sizes["d"], row.step)
    core = {x: letters.strip("ns") for x, letters in CORE.items()}
    names = operands_of(lot, row)
    wide = CHANNELS[name]
    arrays, ways, batch = draw_operands(lot, names, core, wide, sizes | {"n": 1}, lead, options)
    dtype = dtype_of(arrays)
    normalize = options.get("normalize", False)
    f = features(options.get("feature_map", "identity"), sizes["d"])
    in_place = lot.chance(0.5) and not rescales(options)
    state, of_state = lot.state(
        batch, (f, sizes["m"]), working(dtype), normalize, in_place, METHODS[name].stacked
    )
    options |= {"state": state, "in_place": in_place}
    bound = row.bound_of_step or row.bound
    return call_of(
        lot, row.step, bound, arrays, ways, options, dtype, state_ways={"state": of_state}
    )


def operands_of(lot: Lot, row: Row) -> list[str]:
    return row.operands.split() + [x for x in row.optional.split() if lot.chance(0.5)]


def dtype_of(arrays: dict) -> np.dtype:
    return result_dtype(*(x for name, x in arrays.items() if name not in WIDE))


# Operands.


def draw_operands(lot, names, core, wide, sizes, lead, options) -> tuple[dict, dict, tuple]:
    """Arrays, their ways, and the leading axes of the call.

    `core` has the letters of the rest, `wide` those of channels that an operand may have.
    """
    phi, dtypes = options.get("feature_map", "identity"), lot.dtypes(names)
    sizes["f"] = features(phi, sizes["d"])
    # No sum of weights near 0.
    positive = phi in SIGNED and options.get("normalize", False)
    leads = {x: lot.narrow(lead) for x in names}
    cores = {x: tuple(sizes[y] for y in core[x]) for x in names}
    for x in {"k", "a", "b", "erase", "p"} & {*names} if {"beta", "a"} & {*names} else ():
        if dtypes[x] not in DTYPES:
            dtypes[x] = DTYPES[0]  # integers have no norm of 1
    for x in sorted(wide.keys() & {*names}):
        leads[x], more = channels(lot, x, leads, sizes[wide[x]])
        cores[x] += more
    for x, of in (
        ("b", "a"),
        ("erase", "k"),
        ("p", "k"),
    ):  # multiples of another, channel by channel
        if x in names:
            leads[x] = np.broadcast_shapes(leads[x], leads[of])
    batch = np.broadcast_shapes(*(leads[x] for x in names if x != "grad_out"))
    if "grad_out" in names:
        leads["grad_out"] = lot.narrow(batch)
    lot.repeats = any(lead != batch for lead in leads.values())
    arrays, ways = {}, {}
    for x in names:
        values = None
        if x in ("g", "mu"):
            values = partial(decays, lot, core[x] != "", len(cores[x]) > len(core[x]))
        arrays[x], ways[x] = lot.array(
            (*leads[x], *cores[x]), dtypes[x], positive and x in "qk", values
        )
    bounded(lot, arrays, ways, phi, sizes["n"])
    return arrays, ways, batch


def channels(lot, x, leads, size) -> tuple[tuple, tuple]:
    """The axes of an operand with one number per token, or one per channel."""
    longest = max(len(leads[x]) for x in "qkv")
    if lot.chance(0.5):  # a channel: as many axes as the longest, or more
        some = (1,) * (longest - len(leads[x])) + leads[x]
        return some, (lot.pick((size, 1)),)
    return leads[x][max(len(leads[x]) - longest, 0) :], ()


def decays(lot, tokens, by_channel, shape) -> np.ndarray:
    """Gates of one kind, or a few runs of very strong gates."""
    kind = lot.pick((*GATES, "none", "runs"))
    if kind in GATES:
        return GATES[kind](lot.rng, (*shape, 1))[..., 0]
    g = np.zeros(shape)
    if kind == "runs" and tokens:
        g = GATES["weak"](lot.rng, shape)
        n = shape[-2 if by_channel else -1]
        for _ in range(lot.random.randint(1, 3)):
            begin = lot.random.randint(0, n)
            rows = slice(begin, begin + lot.random.randint(1, 40))
            value = lot.pick((-60, -60, -20, -300, -1e30, -np.inf))
            g[(..., rows, slice(None)) if by_channel else (..., rows)] = value
    return g


def bounded(lot, arrays, ways, phi, n) -> None:
    """Operands such that the memory stays bounded, and gates that need no rounding."""
    removes = {"beta", "a"} & arrays.keys()
    for x in ("k", "a") if removes else ():
        if x in arrays:
            short = short_keys(arrays[x].astype(float), phi if x == "k" else "identity")
            arrays[x] = (-short if x == "a" else short).astype(arrays[x].dtype)
    if "beta" in arrays:
        most = 1 if {"erase", "eta"} & arrays.keys() else 2
        for x in {"beta", "eta"} & arrays.keys():
            arrays[x] = (abs(arrays[x].astype(float)) % most).astype(arrays[x].dtype)
    for x in {"b", "erase", "p"} & arrays.keys():
        y = -arrays["a"].astype(float) if x == "b" else twin_map(phi)(arrays["k"].astype(float))
        part = lot.rng.random((*arrays[x].shape[:-1], lot.pick((arrays[x].shape[-1], 1))))
        if x == "erase" and lot.chance(0.3):  # another direction, for as long as that is harmless
            y = 2 / max(n, 2) * short_keys(arrays[x].astype(float), "identity")
        arrays[x] = np.broadcast_to(y * part, arrays[x].shape).astype(arrays[x].dtype)
        ways[x] = lot.way(arrays[x])
    for x in WIDE & arrays.keys():
        dtype = arrays[x].dtype
        if dtype.kind in "biu":
            arrays[x] = -abs(arrays[x]) if dtype.kind == "i" else 0 * arrays[x]
        arrays[x] = arrays[x].astype(working(dtype_of(arrays))).astype(dtype)


def short_keys(k, phi):
    """Keys whose features have norm at most 1."""
    if phi not in MAPS:
        return k
    if vanishes(phi):
        return 0.99 * k / (np.linalg.norm(k, axis=-1, keepdims=True) + 1e-30)
    k = k - 0.5 * np.log(max(k.shape[-1], 1)) - 2
    norm = np.linalg.norm(np.exp(k), axis=-1, keepdims=True)  # no map is above exp
    return k - np.log(np.maximum(norm, 1))


# Options.


def map_options(lot: Lot, d: int, name: str) -> dict:
    scale = lot.pick((1.0, 1.0, 0.5, 0.3))
    if not METHODS[name].mapped:
        return {"scale": scale}
    if not METHODS[name].normalizer:
        erases = RECURRENCES[METHODS[name].name].removes
        kinds = SHORT if erases else (*KINDS, "fourier")
        if name.endswith("_step"):
            kinds = kinds[0 if erases else 1 :]  # a feedforward map wants tokens
        return {"feature_map": lot.map(d, kinds), "scale": scale}
    normalize = lot.chance(0.6)
    kinds = KINDS if normalize else (*KINDS, "fourier")
    phi = lot.map(d, kinds if name != "step" else kinds[1:])
    scale = scale if normalize or lot.chance(0.7) else -1.5
    options = {"feature_map": phi, "normalize": normalize, "scale": scale}
    return options | {"eps": 0.0 if rescales(options) else lot.pick((1e-6, 0.01, 1.0))}


def scan_options(lot, arrays, ways, batch, wide, options, backward, stacked) -> dict:
    """Packing, lengths and states, added to the options; the states' ways."""
    n, d = arrays["q"].shape[-2:]
    r = ()
    if lot.chance(0.3) and not rescales(options):
        options["cu_seqlens"] = cuts(lot, n)
        r = (len(options["cu_seqlens"]) - 1,)
    if lot.chance(0.3):
        key_lengths(lot, arrays, ways, batch, wide, options)
    core = (*r, features(options.get("feature_map", "identity"), d), arrays["v"].shape[-1])
    dtype = working(dtype_of(arrays))
    state_ways = {}
    for key in ("initial_state", "grad_state")[: 1 + backward]:
        if lot.chance(0.4):
            normalize = options.get("normalize", False)
            options[key], state_ways[key] = lot.state(
                batch, core, dtype, normalize, stacked=stacked
            )
    if not backward:
        options["return_state"] = lot.chance(0.5)
    return state_ways


def key_lengths(lot, arrays, ways, batch, wide, options) -> None:
    """Lengths, added to the options; keys past the length of every head mostly hold NaN or inf."""
    if rescales(options):
        return
    lengths = lot.rng.integers(0, arrays["k"].shape[-2] + 1, lot.narrow(batch))
    options["key_lengths"] = lengths.astype(lot.pick(("i8", "i4", "u2")))
    if prod(batch) == 0 or lot.chance(0.3):
        return
    axes = max(arrays[x].ndim for x in "qkv")
    for name, x in arrays.items():
        if name in ("q", "grad_out") or CORE[name][0] not in "ns":
            continue
        if x.dtype.kind in "biu" or isinstance(ways[name], partial):
            continue
        if len(CORE[name]) == 1 and not (name in wide and x.ndim >= axes):
            x = x[..., None]  # one axis after the tokens
        spoil(lot, x, lengths, batch)
