"""Errors of steps on states of 16 bits, token after token, and the bound that they keep.

A step reads the state exactly, computes in float32, and rounds each of its numbers once.  With the
transition A_t of a rule, s_t = A_t s_{t-1} + (what the token writes), an error e_t of a column of
the state is::

    |e_t| <= |A_t| |e_{t-1}| + u |s_t| + tiny sqrt(d),    |o_t - exact| <= |q_t| |A_t| |e_{t-1}|

in the Euclidean norm, with u the unit roundoff of the state's dtype and tiny half of its smallest
number.  Queries have norm 1, so errors of outputs are at most those of columns.  The roundings of
float32 are added as the other tests allow them (`table.ROUNDINGS`), once for each step.

This holds for all operands.  Roundings to nearest of random numbers are independent, each with a
variance of at most u^2 s^2 / 3, so that variances add up in place of errors.  A query of random
direction reads a share 1 / d of a column's variance.  Outputs are then within `SIGMAS` standard
deviations, a tenth to a fiftieth of the first bound.
"""

from typing import NamedTuple

import numpy as np
import operands as table
from ml_dtypes import finfo
from table import ROUNDINGS

import linattn
from linattn import State, reference

HEADS, N, WIDTH = 2, 4096, 16
SIGMAS = 6
DECAY = -1e-3  #: mean of the logarithm of decays: a memory of a thousand tokens


def _eye(x):
    return np.eye(WIDTH) + np.zeros((*x.shape[:-1], 1, 1))


def _outer(x, y):
    return x[..., :, None] * y[..., None, :]


def _erase(x):
    return _eye(x["k"]) - x["beta"][..., None, None] * _outer(x["k"], x["k"])


def _decay(x):
    return np.exp(x["g"])[..., None, None]


#: The transitions of rules, and the operands after q, k and v.
RULES = {
    "causal": ((), lambda x: _eye(x["k"])),
    "gated": (("g",), lambda x: _decay(x) * _eye(x["k"])),
    "delta": (("beta",), _erase),
    "gated_delta": (("g", "beta"), lambda x: _decay(x) * _erase(x)),
    "dplr": (("a", "b", "g"), lambda x: _decay(x) * _eye(x["k"]) + _outer(x["b"], x["a"])),
}


class Growth(NamedTuple):
    """The outputs (heads, n, m) of steps, the exact ones, and how far they may differ: for any
    operands, and for random ones."""

    o: np.ndarray
    exact: np.ndarray
    worst: np.ndarray
    random: np.ndarray

    def error(self, n: int) -> float:
        """The largest error of the first n tokens, relative to their largest output."""
        return abs(self.o - self.exact)[:, :n].max() / abs(self.exact[:, :n]).max()


def draw(name: str) -> dict[str, np.ndarray]:
    """Operands of a rule in float32, by name."""
    rng = np.random.default_rng(0)
    shape = HEADS, N, WIDTH
    x = {name: table.unit(rng.standard_normal(shape)) for name in ("q", "k")}
    x["v"] = rng.standard_normal(shape)
    x["g"] = DECAY * rng.exponential(size=shape[:2])
    x["beta"] = rng.random(shape[:2])
    x["a"] = x["k"]
    x["b"] = -x["beta"][..., None] * x["k"] * np.exp(x["g"])[..., None]
    return {key: x[key].astype(np.float32) for key in ("q", "k", "v", *RULES[name][0])}


def growth(name: str, dtype, *, cut: bool = False) -> Growth:
    """Steps on a state of that dtype, which each of them updates in place.

    ``cut`` rounds towards 0 instead, as a wrong kernel might.
    """
    x = draw(name)
    plain = {"feature_map": "identity", "normalize": False} if name == "causal" else {}
    step = getattr(linattn, table.STEPS[name])
    state = State(np.zeros((HEADS, WIDTH, WIDTH), np.float32 if cut else dtype))
    o, norms = np.empty_like(x["v"]), np.empty(x["v"].shape)
    for t in range(N):
        o[:, t], _ = step(*[y[:, t] for y in x.values()], state, in_place=True, **plain)
        if cut:  # bfloat16 has the first 16 bits of float32
            state.s.view(np.uint32)[...] &= 0xFFFF0000
        norms[:, t] = np.linalg.norm(state.s.astype(np.float64), axis=-2)
    wide = {key: y.astype(np.float64) for key, y in x.items()}
    exact = getattr(reference, name)(*wide.values(), **plain)
    factor = np.linalg.norm(RULES[name][1](wide), 2, axis=(-2, -1))[..., None]
    return Growth(o, exact, *_bounds(norms, factor, dtype))


def _bounds(norms: np.ndarray, factor: np.ndarray, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Both bounds of outputs, from the norms of states' columns and of transitions."""
    info, single = finfo(dtype), ROUNDINGS * float(np.finfo(np.float32).eps)
    unit, tiny = float(info.eps) / 2, float(info.smallest_subnormal) / 2 * WIDTH**0.5
    worst, random = np.empty_like(norms), np.empty_like(norms)
    error = plain = variance = np.zeros_like(norms[:, 0])
    for t in range(norms.shape[1]):
        norm = norms[:, t] * (1 + 2 * unit) + tiny
        plain = factor[:, t] * plain + single * norm
        before = factor[:, t] * error
        variance = factor[:, t] ** 2 * variance
        worst[:, t] = before + plain
        random[:, t] = SIGMAS * np.sqrt(variance / WIDTH) + plain
        error = before + unit * norm + tiny
        variance = variance + (unit * norm + tiny) ** 2 / 3
    return worst, random
