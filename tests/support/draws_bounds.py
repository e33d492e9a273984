"""Error bounds for the results of random calls, in units of u (see `bounds`)."""

from __future__ import annotations

from math import prod

import numpy as np
from bounds import DELTA_ROUNDINGS, FORWARD_SUM, softmax_units
from draws import Trial, clean, features, rescales, twin_function, twin_map
from gates import ROUNDINGS
from map_bounds import moved, spread
from states import flat, units

from linattn import State
from linattn.reference import maps as twins
from linattn.reference.linear import _sum_to


def linear_units(trial: Trial, expected) -> list:
    options = trial.options | {"feature_map": twin_map(trial.options["feature_map"])}
    result = terms(trial, units(trial.name, clean(trial).values(), **options))
    if len(result) > 3 and "initial_state" in options:
        start = trial.options["initial_state"]
        core = 2 + ("cu_seqlens" in options)
        result[3] = _sum_to(result[3], start.s, core)
        if len(result) > 4:
            result[4] = _sum_to(result[4], start.z, core - 1)
    return result


def terms(trial: Trial, result: list) -> list:
    """Allow more for sums over f features, whose terms have one sign: about sqrt(f) roundings.

    Equal terms all round the same way: f roundings more, and 32 u without a normaliser too.
    """
    phi = trial.options.get("feature_map", "identity")
    normalize = trial.options.get("normalize", False)
    f = features(phi, trial.operands[0].shape[-1])
    least = 32 if normalize else 8
    factor = (max(least, 32) + f if trial.alike else least + f**0.5) / least
    if rescales(trial.options):  # exponents are taken from others of their size
        factor *= 2
    return [factor * x for x in result]


def step_units(trial: Trial, expected) -> list:
    options = {key: x for key, x in trial.options.items() if key not in ("state", "in_place")}
    options["feature_map"] = twin_map(options["feature_map"])
    rows = [x[..., None, :] for x in clean(trial).values()]
    start = trial.options["state"]
    o, *state = units("causal", rows, **options, initial_state=start, return_state=True)
    return terms(trial, [o[..., 0, :], *state])


def gated_units(trial: Trial, expected) -> list:
    """The twin on absolute values, as in `gates`.

    A sum of gates G is off by |G| u, and so is exp(G) relative to itself, as long as it is not
    below u.
    """
    sizes, phi = clean(trial), twin_map(trial.options.get("feature_map", "identity"))
    q, k = sizes["q"], sizes["k"]
    sizes |= {name: abs(x) for name, x in sizes.items() if name != "g"}
    sizes |= {"q": abs(phi(q)) + moved(phi, q), "k": abs(phi(k)) + moved(phi, k)}
    options = {key: _size(x) for key, x in trial.options.items() if key != "in_place"}
    options |= {"scale": abs(options["scale"])}
    if "feature_map" in options:
        options["feature_map"] = "identity"
    result = flat(twin_function(trial.name)(**sizes, **options))
    backward = trial.name.endswith("_backward")
    if backward:
        result[:2] = spread(phi, q, result[0]), spread(phi, k, result[1])
    count = ROUNDINGS["gradients" if backward else "o"]
    largest = max((x.max(initial=0) for x in result), default=0)
    unit = float(np.finfo(trial.work).eps) / 2
    tokens = 1 if trial.name.endswith("_step") else q.shape[-2]
    count += min(-np.log(unit), tokens * abs(sizes["g"]).max(initial=0))
    return terms(trial, [count * (x + unit * largest) for x in result])


def _size(x):
    """The absolute value of a state."""
    return State(abs(x.s.astype(float)), None) if isinstance(x, State) else x


def delta_units(trial: Trial, expected) -> list:
    """Some roundings of the largest number of all heads; equal terms all round the same way."""
    operands = clean(trial)
    q, k, v = (operands[x] for x in "qkv")
    g = operands.get("grad_out")
    phi, scale = twin_map(trial.options.get("feature_map", "identity")), trial.options["scale"]
    scale = abs(scale)
    top = lambda *arrays: max(abs(x).max(initial=0) for x in arrays)  # noqa: E731
    a = abs(phi(q))
    given = [x for x in trial.options.values() if isinstance(x, State)]
    states = [y for x in given for y in x if y is not None]
    length = lambda x: top(np.linalg.norm(x, axis=-1))  # noqa: E731
    # A key of norm x needs a memory of v / x to answer with v.
    norm = np.linalg.norm(phi(k)) / max(prod(k.shape[:-1]), 1) ** 0.5
    held = max(top(v) / max(norm, 0.1), *map(top, states), 0.0)
    natural = [*expected, np.float64(held), np.float64(scale * length(a) * held)]
    steep = 1.0
    if g is not None:
        pulled = scale * top(a) * top(g) + (top(*states) if states else 0)
        natural += [scale * length(g) * held, pulled * max(length(v), 1.0, held)]
        steep = max(1.0, *(top(spread(phi, x, np.ones(phi(x).shape))) for x in (q, k)))
    if not isinstance(phi, twins.Elementwise):
        steep *= 1 + max(top(moved(phi, x)) / (top(phi(x)) or 1) for x in (q, k))
    for x in {"g", "mu"} & {*operands}:  # what grows is larger before it is erased, or in 16 tokens
        steep *= 1 + 16 * max(0.0, operands[x].max(initial=0))
    heads = prod(np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))) if g is not None else 1
    # Rarely gates make a memory grow without bound, and an early error grows beside it.
    usual = top(*map(np.asarray, natural[len(expected) :]))
    steep *= max(1.0, top(*expected) / (100 * usual or 1)) ** 0.5
    count = (DELTA_ROUNDINGS + trial.alike * a.shape[-1]) * steep * max(heads, 1)
    return [np.full(x.shape, count * top(*map(np.asarray, natural))) for x in expected]


def score_units(trial: Trial, expected) -> list:
    operands, scale = [*clean(trial).values()], trial.options["scale"]
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
