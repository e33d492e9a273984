"""Random calls of scans, of recurrences with a running maximum, and of what has like operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from draws import DTYPES, Lot, Trial, call_of, cuts, draw_out, spoil, wide_operands, working
from draws_scans_bounds import linear_units, mlstm_units, selective_units, wkv_units

from linattn._core.dtypes import result_dtype
from linattn.operators.registry import RECURRENCES


class Row(NamedTuple):
    """An operator: the axes of its operands and of each field of its states, and the bound."""

    operands: dict[str, str]
    state: tuple[str | None, ...]
    bound: Callable
    flags: tuple[str, ...]
    optional: set[str]
    holder: type
    output: str
    padded: tuple[str, ...] = ()  # operands that are not read past the last key
    broadcast: bool = False  # whether tokens and channels are broadcast as well
    positive: int = 1  # the field that is a sum of positive numbers
    letters: str = "nmfd"  # sizes that are drawn
    sizes: Callable = lambda lot: {}  # others
    values: Callable | None = None  # see `values`


def row_of(name: str, bound: Callable, padded: str = "", **more: Any) -> Row:
    """The row of a recurrence of the registry."""
    r = RECURRENCES[name]
    axes = {x.name: x.dims for x in r.operands}
    optional = {x.name for x in r.operands if x.optional}
    fields = tuple(r.fields.values())
    flags, padding = tuple(r.flags["forward"]), tuple(padded.split())
    more = {"holder": r.holder, "output": r.layout.output} | more
    return Row(axes, fields, bound, flags, optional, padded=padding, **more)


ROWS = {
    "linear_scan": row_of("linear_scan", linear_units, broadcast=True),
    "selective_scan": row_of("selective_scan", selective_units, "dt B"),
    "mlstm": row_of("mlstm", mlstm_units, "k v i f"),
    "wkv": row_of("wkv", wkv_units, "k v"),
}


def scan(lot: Lot) -> Trial:
    return sequence(lot, ROWS)


def sequence(lot: Lot, rows: dict[str, Row]) -> Trial:
    """A sequence, its gradients, or a token, of one of the rows."""
    name, end = lot.pick(tuple(rows)), lot.pick(("", "", "_backward", "_backward", "_step"))
    row = rows[name]
    sizes, lead = lot.sizes(*row.letters)
    sizes |= row.sizes(lot)
    options = {flag: lot.chance(0.5) for flag in row.flags}
    if "activation" in options:
        options["activation"] = lot.pick((None, "silu"))
    if end == "_step":
        sizes["n"] = 1
        options.pop("reverse", None)
    if RECURRENCES[name].normalizer:
        options |= {"scale": lot.pick((None, 0.25, -1.0)), "normalize": lot.chance(0.7)}
        options["eps"] = lot.pick((0.0, 0.0, 0.01, 1.0))
    arrays, ways, batch = operands(lot, name, row, end, sizes, lead, options)
    wide = wide_operands(name)
    dtype = result_dtype(*(x for y, x in arrays.items() if y not in wide))
    for x in wide & arrays.keys():  # no rounding on the way in
        arrays[x] = arrays[x].astype(working(dtype)).astype(arrays[x].dtype)
    if end != "_step":
        spread_out(lot, row, arrays, ways, batch, sizes["n"], options)
    state_ways = states(lot, row, end, batch, sizes, working(dtype), options)
    out = None
    if not end and lot.chance(0.5):
        out = draw_out(lot, arrays.values(), (*batch, *(sizes[x] for x in row.output)), dtype)
    return call_of(
        lot, name + end, row.bound, arrays, ways, options, dtype, state_ways=state_ways, out=out
    )


def operands(lot, name, row, end, sizes, lead, options) -> tuple[dict, dict, tuple]:
    """Arrays, their ways, and the leading axes of the call."""
    core = {x: y for x, y in row.operands.items() if x not in row.optional or lot.chance(0.5)}
    if end == "_step":
        core = {x: letters.replace("n", "") for x, letters in core.items()}
    shapes = {x: (*lot.narrow(lead), *(sizes[y] for y in core[x])) for x in core}
    leads = [shapes[x][: len(shapes[x]) - len(core[x])] for x in core]
    if row.broadcast:  # one operand is whole, so that the sizes stay
        other = lot.pick(("a", "x"))
        shapes[other] = lot.narrow(shapes[other])
    batch = np.broadcast_shapes(*leads)
    if row.broadcast:
        rank = 2 - (end == "_step")
        batch = np.broadcast_shapes(*shapes.values())[:-rank]
    if end == "_backward":
        shapes["grad_out"] = (*lot.narrow(batch), *(sizes[x] for x in row.output))
    dtypes = lot.dtypes(shapes)
    if row.broadcast and end == "_backward" and shapes["a"][-2:] != shapes["x"][-2:]:
        dtypes["grad_out"] = DTYPES[0]  # sums over repeats of 16 bits depend on layouts
    for x in {"i", "f", "dt", "dt_bias", "A"} & dtypes.keys():
        if dtypes[x] not in DTYPES:
            dtypes[x] = DTYPES[0]
    lot.repeats = True
    # With -inf for both gates the maximum is -inf, and the twin has NaN for its gradients.
    holed, draw = lot.pick(("i", "f", "a", "k")), row.values or values
    pairs = {
        x: lot.array(shape, dtypes[x], x == "w", draw(lot, name, x, options, x == holed))
        for x, shape in shapes.items()
    }
    arrays = {x: y for x, (y, _) in pairs.items()}
    return arrays, {x: way for x, (_, way) in pairs.items()}, batch


def values(lot, name, operand, options, holes) -> Callable | None:
    """Draws that keep memories small, with gates of any size; None if they are normal."""
    size = lot.pick((0.1, 1.0, 1.0, 100.0))
    large = lot.pick((1.0, 1.0, 5.0, 100.0, 1e4))
    if not options.get("normalize", True):
        large = min(large, 5.0)  # e^m is a factor of what is returned
    rng = lot.rng
    if name == "linear_scan" and operand == "a":
        if not options["log"]:
            return lambda shape: rng.uniform(-1.05, 1.05, shape)
        return lambda shape: holed(lot, 0.02 - rng.exponential(size=shape) * size)
    if operand == "A":
        return lambda shape: -np.exp(rng.standard_normal(shape)) * size
    if operand in ("dt", "dt_bias"):
        low = -1.0 if options["softplus"] else -0.0002  # what grows is soon past the range
        return lambda shape: rng.uniform(low, 0.5, shape)
    if (name, operand) in {("mlstm", "i"), ("mlstm", "f"), ("wkv", "k"), ("wkv", "u")}:
        normal = lambda shape: large * rng.standard_normal(shape)  # noqa: E731
        return (lambda shape: holed(lot, normal(shape))) if holes else normal
    if operand == "w":
        return lambda shape: rng.exponential(size=shape) * size
    return None


def holed(lot, x):
    """Replace some numbers by -inf, in some calls."""
    return np.where(lot.rng.random(x.shape) < 0.05, -np.inf, x) if lot.chance(0.2) else x


def spread_out(lot, row, arrays, ways, batch, n, options) -> None:
    """Packing and lengths, added to the options; what is not read holds NaN or inf."""
    if lot.chance(0.3):
        options["cu_seqlens"] = cuts(lot, n)
    if not row.padded or lot.chance(0.7):
        return
    lengths = lot.rng.integers(0, n + 1, lot.narrow(batch))
    options["key_lengths"] = lengths.astype(lot.pick(("i8", "i4", "u2")))
    if prod(batch) == 0 or lot.chance(0.3):
        return
    for name in row.padded:
        x = arrays[name]
        if x.dtype.kind in "biu" or isinstance(ways[name], partial):
            continue
        spoil(lot, x if len(row.operands[name]) == 2 else x[..., None], lengths, batch)


def states(lot, row, end, batch, sizes, dtype, options) -> dict:
    """States, added to the options; their ways."""
    if end == "_step":
        options["in_place"] = lot.chance(0.5)
    elif not end:
        options["return_state"] = lot.chance(0.5)
    keys = {"": ["initial_state"], "_backward": ["initial_state", "grad_state"], "_step": ["state"]}
    packed = (len(options["cu_seqlens"]) - 1,) if "cu_seqlens" in options else ()
    ways = {}
    for key in keys[end]:
        if key == "state" or lot.chance(0.4):
            whole = options.get("in_place", False)
            fields = [
                field(
                    lot,
                    batch,
                    (*packed, *(sizes[x] for x in letters)),
                    dtype,
                    whole,
                    i == row.positive,
                )
                for i, letters in enumerate(row.state)
            ]
            if not options.get("normalize", True):
                fields[1] = None, None
            x, way = zip(*fields, strict=True)
            options[key], ways[key] = row.holder(*x), row.holder(*way)
    return ways


def field(lot, batch, core, dtype, whole, positive):
    """A field of a state, writeable if `whole`, and its memory layout."""
    lead = batch if whole else lot.narrow(batch)
    x, _ = lot.array((*lead, *core), dtype, positive)
    x = x + dtype.type(0.125) if positive else x
    return x, lot.way(x, "byte_swapped", *(("read_only",) if whole else ()))
