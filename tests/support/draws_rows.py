"""Random calls of functions per row or per element: maps, functions, decays, the convolution."""

from __future__ import annotations

import numpy as np
from bounds import BACKWARD_SUM, FORWARD_SUM
from cases import MAPS
from draws import (
    DTYPES,
    Lot,
    Trial,
    call_of,
    clean,
    draw_out,
    map_object,
    twin_function,
)
from draws_operators import KINDS
from draws_scans import row_of, sequence
from map_bounds import moved, spread
from states import flat

from linattn import feature_maps
from linattn._core.dtypes import result_dtype, state_dtype
from linattn._core.gufuncs import internal_ufuncs
from linattn.reference import maps as twins

FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "gate": lambda x, y: x / (1 + np.exp(-y)),
    "softplus_gate": lambda x, y: np.logaddexp(x, 0) / (1 + np.exp(-y)),
}


def feature_map(lot: Lot) -> Trial:
    backward = lot.chance(0.5)
    sizes, lead = lot.sizes(*"nd")
    d = sizes["d"] = min(max(sizes["d"], 1), 65)
    kinds = (*KINDS, "fourier") if backward else (*KINDS, "fourier", "relu")
    phi = feature_maps.get(lot.pick(MAPS) if lot.chance(0.4) else map_object(lot.pick(kinds), d))
    exact = twins.twin(phi)
    names = ("x", "grad") if backward else ("x",)
    dtypes = lot.dtypes(names)
    shapes = {"x": (*lead, sizes["n"], d), "grad": (*lead, sizes["n"], phi.features(d))}
    pairs = [lot.array(shapes[x], dtypes[x]) for x in names]
    operands, ways = map(list, zip(*pairs, strict=True))
    dtype = state_dtype(operands[0])
    trial = Trial(
        f"{phi}{'.backward' if backward else ''}",
        phi.input_gradient if backward else phi, exact.backward if backward else exact, None,
        names, operands, ways, {}, dtype, lot.random.randint(1, 4),
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
    names = ("x", "y")[: 1 + name.endswith("gate")]
    pairs = [lot.array(shape, dtype, name == "log1p") for _ in names]
    operands, ways = map(list, zip(*pairs, strict=True))
    out = draw_out(lot, operands, shape, dtype) if lot.chance(0.5) else None
    return Trial(
        name, internal_ufuncs[name], f, lambda expected: [16 * abs(x) for x in expected],
        names, operands, ways, {}, dtype, lot.random.randint(1, 4), out,
    )  # fmt: skip


def log_decay(lot: Lot) -> Trial:
    backward = lot.chance(0.5)
    sizes, lead = lot.sizes(*"nd")
    names = ("x", "A_log", "dt_bias", *(("grad",) if backward else ()))
    shapes = {x: lot.narrow((*lead, *sizes.values())) for x in names[:3]}
    shapes["grad"] = lot.narrow(np.broadcast_shapes(*shapes.values()))
    dtypes = lot.dtypes(names)
    arrays, ways = drawn(lot, {x: (shapes[x], dtypes[x]) for x in names})
    lot.repeats = True
    name = "log_decay_backward" if backward else "log_decay"
    options = {"lower_bound": lot.pick((None, -5.0, -0.25))}
    dtype = result_dtype(*arrays.values())
    return call_of(lot, name, log_decay_units, arrays, ways, options, dtype)


def log_decay_units(trial: Trial, expected) -> list:
    """x + dt_bias may cancel, and the exponential amplifies the error of A_log."""
    operands, bound = clean(trial), trial.options["lower_bound"]
    x, A_log, dt_bias = (abs(operands[name]) for name in trial.names[:3])
    rate = np.exp(operands["A_log"]) if bound is not None else 1
    slack = 16 + 2 * rate * (x + dt_bias) + 8 * A_log
    if len(expected) == 1:
        return [slack * abs(expected[0])]
    z = operands["x"] + operands["dt_bias"]
    size = (slack * abs(operands["grad"])) * np.ones(z.shape)
    twin = twin_function(trial.name)
    positive = {**operands, "grad": size}
    by_x, by_A, by_bias = map(abs, twin(**positive, **trial.options))
    if bound is not None:  # terms of either sign, 0 where x + dt_bias is
        moved_z = size * rate * (x + dt_bias) * abs(bound)
        signed = twin(**{**operands, "grad": size * np.sign(z)}, **trial.options)[1]
        by_A = abs(signed) + np.broadcast_to(moved_z, size.shape).sum() / 4
    return [by_x, by_A, by_bias]


def conv_units(trial: Trial, expected) -> list:
    """The sums with every factor made positive; |silu'| < 1.1, its own error included."""
    sizes = {name: abs(x) for name, x in clean(trial).items()}
    options = {
        key: abs(x.astype(float)) if key in trial.state_ways else x
        for key, x in trial.options.items()
        if key not in ("in_place", "activation")
    }
    g, w = sizes.pop("grad_out", None), sizes["weight"].shape[-1]
    if g is None:
        o, *state = flat(twin_function(trial.name)(**sizes, **options))
        return [1.1 * (w + 8) * o, *state]
    last = options.pop("grad_state", None)
    if trial.options["activation"]:
        g = g * (1.1 + twin_function("causal_conv1d")(**sizes, **options))
    result = twin_function(trial.name)(**sizes, grad_out=g, **options, grad_state=last)
    return [4 * (w + 8) * x for x in result]


TAPS = (1, 2, 3, 4, 4, 4, 5, 7, 8, 9, 12)
#: Its state is an array of one token less than it has taps.
CONVOLUTION = row_of(
    "causal_conv1d", conv_units, letters="nm", holder=lambda x: x,
    sizes=lambda lot: {"f": (taps := lot.pick(TAPS)), "d": taps - 1},
)  # fmt: skip


def convolution(lot: Lot) -> Trial:
    return sequence(lot, {"causal_conv1d": CONVOLUTION})


def drawn(lot: Lot, of: dict) -> tuple[dict, dict]:
    """Arrays and their ways, by name, of shapes and dtypes."""
    pairs = {name: lot.array(*x) for name, x in of.items()}
    return {name: x for name, (x, _) in pairs.items()}, {name: x for name, (_, x) in pairs.items()}
