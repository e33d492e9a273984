"""Error bounds for random calls of scans, in units of u (see `bounds`).

A scan's result is a sum of products.  With every factor positive and as large as its roundings
allow, it is a convex function of u.  Its slope between 0 and `SMALL` is therefore above the slope
at 0, which is the bound to first order.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from draws import Trial, clean
from states import flat

from linattn import State
from linattn.reference import rwkv, scan, xlstm

SMALL = 1e-6
LEAST = -1e4  # exponents below are of nothing


def slope(model) -> list[np.ndarray]:
    """The slopes of the arrays that a function of u returns."""
    return [(y - x) / SMALL for x, y in zip(model(0.0), model(SMALL), strict=True)]


def kind(trial: Trial) -> str:
    """The suffix of the function's name."""
    return next((x for x in ("_backward", "_step") if trial.name.endswith(x)), "")


def given(trial: Trial, tokens: tuple[str, ...]) -> tuple[dict, dict]:
    """Operands and options without the flags of calls; a step is a sequence of one token."""
    operands, options = clean(trial), dict(trial.options)
    options = {x: y for x, y in options.items() if x not in ("in_place", "return_state")}
    if kind(trial) == "_step":
        rows = {x for x in tokens if x in operands}
        for x in rows:
            axis = tokens_axis(trial, x)
            least = axis - 1  # a number may stand for a row
            operands[x] = np.expand_dims(np.array(operands[x], ndmin=least), -axis)
        options["initial_state"] = options.pop("state")
    for key in {"initial_state", "grad_state"} & options.keys():
        options[key] = State(*(x if x is None else x.astype(float) for x in options[key]))
    return operands, options


def tokens_axis(trial: Trial, name: str) -> int:
    return 1 if trial.name.startswith("mlstm") and name in "if" else 2


def summed(x, shape, u) -> np.ndarray:
    """The sum of x over repeats, rounded once per repeat."""
    return scan._sum_to(x, np.empty(shape)) * (1 + u * x.size / max(prod(shape), 1))


def after(trial: Trial, o, state: list, wanted: bool) -> list:
    """The output, which is one token for a step, then the state if `wanted`."""
    if kind(trial) == "_step":
        return [o[..., 0, :], *state]
    return [o, *state] if wanted else [o]


# Scans over channels.


def linear_units(trial: Trial, expected) -> list:
    operands, options = given(trial, ("a", "x"))
    log = options["log"]
    a = np.maximum(operands["a"], LEAST) if log else abs(operands["a"])
    for key in {"initial_state", "grad_state"} & options.keys():
        options[key] = abs(options[key].s)

    def model(u):
        more = 1 + 4 * u
        sizes = {"a": a + u * (4 + 2 * abs(a)) if log else a * more, "x": abs(operands["x"]) * more}
        if kind(trial) != "_backward":
            o, s = scan.linear_scan(**sizes, **options, return_state=True)
            return after(trial, o, [s], trial.options.get("return_state"))
        g = abs(operands["grad_out"]) * more
        shape = np.broadcast_shapes(a.shape, operands["x"].shape, g.shape)
        sizes = {x: np.broadcast_to(y, shape) for x, y in sizes.items()}
        da, dx, *ds = scan.linear_scan_backward(**sizes, grad_out=g, **options)
        da, dx = (summed(y, operands[x].shape, u) for x, y in (("a", da), ("x", dx)))
        return [da * more, dx, *(x * (1 + 16 * u) for x in ds)]

    return slope(model)


def selective_units(trial: Trial, expected) -> list:
    operands, options = given(trial, ("x", "dt", "B", "C", "z"))
    lengths, cu = options.get("key_lengths"), options.get("cu_seqlens")
    x, dt, A, B, C = (operands[name] for name in ("x", "dt", "A", "B", "C"))
    D, bias = (
        operands.get(name, np.zeros(x.shape[-1:]))[..., None, :] for name in ("D", "dt_bias")
    )
    z, g = operands.get("z"), operands.get("grad_out")
    raw, moved = dt + bias, abs(dt) + abs(bias)
    dt = np.logaddexp(0, raw) if options["softplus"] else raw
    moved = moved + 4 * abs(dt)
    x, B = abs(x), abs(B)
    dt, moved, B = (scan._exists(y, lengths) for y in (dt, moved, B))
    first, last = (options.get(key) for key in ("initial_state", "grad_state"))
    lead = np.broadcast_shapes(
        *(y.shape[:-2] for y in (x, dt, A, B, C, D, *(y for y in (z, g) if y is not None))),
        *(y.s.shape[: y.s.ndim - 2 - (cu is not None)] for y in (first, last) if y is not None),
    )
    n, (m, r) = x.shape[-2], A.shape[-2:]
    exponent = dt[..., None] * A[..., None, :, :]
    off = 5 + 6 * abs(exponent) + abs(A[..., None, :, :]) * moved[..., None]
    packed = () if cu is None else (len(cu) - 1,)

    def flatten(state):
        if state is None:
            return np.zeros((*packed, m * r))
        return abs(state.s).reshape(*state.s.shape[:-2], m * r)

    one = 1 if z is None else abs(z) * scan._sigmoid(z)
    steep = 0 if z is None else 8 + abs(z)

    def model(u):
        time = abs(dt) + u * moved
        write = (time * x)[..., None] * abs(B)[..., None, :] * (1 + 4 * u)
        steps = exponent + u * off
        wide = (*lead, n, m, r)
        steps, write = (np.broadcast_to(y, wide).reshape(*lead, n, m * r) for y in (steps, write))
        start = {"cu_seqlens": cu, "initial_state": flatten(first)}
        h, s = scan.linear_scan(steps, write, log=True, **start, return_state=True)
        h = h.reshape(wide)
        p = (abs(C)[..., None, :] * h).sum(-1) * (1 + u * (r + 2)) + abs(D) * x * (1 + 4 * u)
        gate = one * (1 + u * steep)
        if g is None:
            s = s.reshape(*s.shape[:-1], m, r)
            return after(trial, p * gate, [s], trial.options.get("return_state"))
        c = abs(g) * gate * (1 + 2 * u)
        pulled = np.broadcast_to((abs(C)[..., None, :] * c[..., None]), wide)
        q, back, ds = scan.linear_scan_backward(
            steps, write, pulled.reshape(*lead, n, m * r), log=True, **start,
            grad_state=flatten(last),
        )  # fmt: skip
        q, back = q.reshape(wide), back.reshape(wide)
        du = (back * abs(B)[..., None, :]).sum(-1) * (1 + u * r)
        ddt = du * x + (abs(A)[..., None, :, :] * q).sum(-1) * (1 + u * r)
        if options["softplus"]:
            ddt = ddt * scan._sigmoid(raw) * (1 + u * (8 + moved))
        grads = {
            "x": du * time + abs(D) * c, "dt": ddt, "A": (time[..., None] * q).sum(-3),
            "B": (back * (time * x)[..., None]).sum(-2) * (1 + u * m),
            "C": (c[..., None] * h).sum(-2) * (1 + u * m), "D": (c * x).sum(-2),
        }  # fmt: skip
        if z is not None:
            part = scan._sigmoid(z)
            inner = abs(scan._slope(z)) + u * steep * part * (1 + abs(z) * (1 - part))
            grads["z"] = abs(g) * p * inner
        grads["dt_bias"] = ddt.sum(-2)
        grads = {
            key: np.broadcast_to(y, (*lead, *y.shape[-own(key) :])) for key, y in grads.items()
        }
        names = [name for name in trial.names if name != "grad_out"]
        result = [
            summed(grads[name], operands[name].shape, u)
            * (1 + u * (8 + (n if name in ("A", "D", "dt_bias") else 0)))
            for name in names
        ]
        if first is None and last is None:
            return result
        ds = ds.reshape(*ds.shape[:-1], m, r)
        if first is None:
            return [*result, np.broadcast_to(ds, (*lead, *packed, m, r))]
        ds = np.broadcast_to(ds, (*lead, *packed, m, r))
        return [*result, summed(ds, first.s.shape, u)]

    return slope(model)


def own(name: str) -> int:
    """The number of axes of a gradient that are not leading axes."""
    return 1 if name in ("D", "dt_bias") else 2


# Recurrences with a running maximum.


class Exponents:
    """What the maximum m, and what is held relative to it, may be off by, in units of u.

    m carries its error until a new maximum replaces it; a memory carries the largest of a term.
    """

    def __init__(self, m) -> None:
        self.m, self.held = abs(finite(m)), np.zeros(m.shape)

    def write(self, decay, past, new, m, gate, weight) -> None:
        decay, past, new, m = (abs(finite(x)) for x in (decay, past, new, m))
        moved = np.where(gate > 0, self.m + 2 * (decay + past + m + new * (gate < 1)), 0)
        moved = moved + 2
        self.m = np.where(gate == 1, self.m + 2 * (decay + m), 0) + m
        wrote = np.where(weight > 0, 2 * (self.m + new) + 4, 0)
        self.held = np.where(gate > 0, np.maximum(self.held + moved, wrote), wrote)


def finite(x):
    """x, with 0 for the exponents of zeros."""
    return np.where(abs(x) < 1e300, x, 0)


def normwise(expected, operands, options, count) -> list:
    """Roundings of the largest number of the call, and of its sums over tokens and heads."""
    top = lambda x: abs(x).max(initial=0)  # noqa: E731
    states = [x for y in options.values() if isinstance(y, State) for x in y if x is not None]
    rows = [operands[x] for x in ("q", "k", "v") if x in operands]
    rows = rows[1:] if "u" in operands else rows  # the keys of wkv are exponents
    pulled = top(operands["grad_out"]) + prod(max(1.0, top(x)) for x in states) * bool(states)
    natural = max(1.0, *map(top, expected)) + max(1.0, *map(top, rows)) * pulled
    sizes = [x.size for x in expected]
    repeats = max(sizes) / max(min(sizes[: len(operands) - 1]), 1)
    size = count * natural * (1 + repeats**0.5)
    # The twin has e^-m, which may be past the range.
    return [np.where(np.isnan(x), np.inf, size) for x in expected]


def tied(trial: Trial, kept, new) -> np.ndarray:
    """Where a running maximum has two arguments that rounding makes equal: either one may have its
    gradient."""
    near = 4 * np.finfo(trial.work).eps * (abs(kept) + abs(new))
    return (kept == new) | (abs(kept - new) <= near)


def mlstm_units(trial: Trial, expected) -> list:
    operands, options = given(trial, ("q", "k", "v", "i", "f"))
    start, cu, eps = options.get("initial_state"), options.get("cu_seqlens"), options["eps"]
    normalize = options["normalize"]
    g = operands.get("grad_out")
    arrays = [operands[x] for x in ("q", "k", "v", "i", "f")]
    more = (options["scale"], options.get("key_lengths"), cu)
    others = [] if g is None else [g]
    true = xlstm._Operands(*arrays, *more, start, *others)
    size = xlstm._Operands(
        *map(abs, arrays[:3]), *arrays[3:], *more,
        start and State(*(abs(x) if x is not None and i < 2 else x for i, x in enumerate(start))),
        *others,
    )  # fmt: skip
    size.scale = abs(size.scale)
    count = 24 + size.q.shape[-1]
    n = size.q.shape[-2]
    o = np.zeros((*size.s.shape[:-3], n, size.v.shape[-1]))
    kappa, held, kink = 1.0, 0.0, np.inf
    off = [Exponents(size.m[..., r]) for r in range(size.r)]
    for r, (begin, end) in enumerate(pairwise((0, n) if cu is None else cu)):
        for t in range(begin, end):
            before = size.m[..., r].copy()
            decay, _, gate, w = size.write(r, t)
            true.write(r, t)
            has = size.has(t)
            new = np.where(has, size.i[..., t], -np.inf)
            off[r].write(decay, decay + before, new, size.m[..., r], gate, w)
            kink = 0.0 if np.any(has & tied(trial, decay + before, new)) else kink
            (num, top), nq = size.read(r, t), true.read(r, t)[1]
            floor = np.exp(-size.m[..., r])
            den = np.maximum(abs(nq), floor) + eps if normalize else floor
            error = count + off[r].held
            of_den = (top * error if normalize else 0) + floor * (off[r].m + count)
            # What is read, and e^-m, may both be 0 in the dtype of the call.
            nothing = den < 1e8 * float(np.finfo(trial.work).tiny)
            kink = 0.0 if np.any(nothing) else kink
            off_o = np.where(nothing, np.inf, error + of_den / den)[..., None]
            o[..., t, :] = np.where(off_o == np.inf, np.inf, num / den[..., None] * off_o)
            kappa = max(kappa, np.max(of_den / den, initial=0) / count)
            held = max(held, np.max(off[r].held, initial=0))
            apart = abs(abs(nq) - floor) / (of_den + 1e-300) if normalize else np.array(np.inf)
            kink = min(kink, np.min(apart, initial=np.inf))
    if g is None:
        m = np.stack([x.m for x in off], -1) if off else size.m
        errors = np.stack([count + x.held for x in off], -1) if off else size.m
        fields = State(
            size.s * errors[..., None, None], size.z * errors[..., None], m + 4 * abs(size.m)
        )
        size.s, size.z, size.m = fields
        state = flat(size.state(normalize))
        return after(trial, o, state, trial.options.get("return_state"))
    if not kink > 2 * np.finfo(trial.work).eps:  # either denominator, or either maximum
        return [np.full(x.shape, np.inf) for x in expected]
    return normwise(expected, operands, options, 16 * (count + held + n) * kappa**2)


def wkv_units(trial: Trial, expected) -> list:
    operands, options = given(trial, ("k", "v"))
    k, v, w, u = (operands[x] for x in "kvwu")
    cu, lengths, start = (options.get(x) for x in ("cu_seqlens", "key_lengths", "initial_state"))
    g = operands.get("grad_out")
    k, v = rwkv._keys(k, abs(v), lengths)
    start = start and State(abs(start.s), *start[1:])
    fields = rwkv._start(k, v, w, u, start, cu, *([] if g is None else [g]))
    n = k.shape[-2]
    o = np.zeros((*fields.shape[1:-2], n, k.shape[-1]))
    off = [Exponents(fields[2][..., r, :]) for r in range(fields.shape[-2])]
    held, unclear = 0.0, False
    for r, t in rwkv._tokens(cu, n):
        before, x = fields[..., r, :].copy(), off[r]
        kt, vt = k[..., t, :], v[..., t, :]
        read, _ = rwkv._read(before, kt + u, vt)
        exponent = abs(finite(kt)) + abs(u) + abs(finite(before[2]))
        o[..., t, :] = read * 2 * (16 + x.held + x.m + 2 * exponent)
        w_t = np.where(rwkv._has_key(lengths, t), w, 0)
        there = rwkv._has_key(lengths, t) & tied(trial, before[2] - w_t, kt)
        unclear |= g is not None and "grad_state" in options and bool(np.any(there))
        fields[..., r, :], (c, e) = rwkv._write(before, w_t, kt, vt)
        x.write(w_t, before[2] - w_t, kt, fields[2][..., r, :], c, e)
        held = max(held, np.max(x.held + x.m + 2 * exponent, initial=0))
    if unclear:
        return [np.full(x.shape, np.inf) for x in expected]
    if g is not None:
        return normwise(expected, operands, options, 16 * (16 + held + n))
    if off:
        errors, m = np.stack([16 + x.held for x in off], -2), np.stack([x.m for x in off], -2)
        fields = np.stack((fields[0] * errors, fields[1] * errors, m + 4 * abs(finite(fields[2]))))
    return after(trial, o, flat(rwkv._finish(fields, cu)), trial.options.get("return_state"))
