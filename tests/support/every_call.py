"""A call of every public operator, in all kinds of a recurrence, to be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from recurrences import ATTENTION, RULES, core, make, step_of
from states import flat

import linattn
from linattn import State, feature_maps
from linattn._gufuncs import internal_ufuncs


class Call(NamedTuple):
    """`written` are arrays of the caller that it writes."""

    name: str
    f: Callable
    operands: tuple = ()
    options: dict = {}  # noqa: RUF012
    written: tuple[np.ndarray, ...] = ()

    def run(self) -> Any:
        return self.f(*self.operands, **self.options)

    def results(self) -> list[np.ndarray]:
        return [x.copy() for x in flat(self.run())]


def _call(name: str, *operands, written=(), **options) -> Call:
    return Call(name, getattr(linattn, name), operands, options, tuple(written))


def every_call(
    n: int = 40, d: int = 8, m: int = 9, *, lead: tuple[int, ...] = (2,), dtype="float32"
) -> Iterator[Call]:
    """On arrays (*lead, n, d) and (*lead, n, m)."""
    wide = np.promote_types(dtype, np.float32)
    rng = np.random.default_rng(0)

    def normal(*shape: int, dtype=dtype) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    for rule in ATTENTION:
        yield from _recurrence(rule, make(rule, n, d, m, dtype=dtype, lead=lead), d, wide, normal)
    q, k, v, g = (normal(*lead, n, x) for x in (d, d, m, m))
    E, F = normal(n, 5), normal(n, 5)
    out = normal(*lead, n, m)
    for name, operands, options in (
        ("noncausal", (q, k, v), {}),
        ("softmax_attention", (q, k, v), {}),
        ("softmax_attention", (q, k, v), {"causal": True}),
        ("linformer", (q, k, v, E, F), {}),
    ):
        yield _call(name, *operands, **options, out=out, written=(out,))
        yield _call(f"{name}_backward", *operands, g, **options)
    weight, bias = normal(m, 4), normal(m)
    inputs = normal(*lead, m, 3, dtype=wide)
    conv = {"bias": bias, "activation": "silu"}
    yield _call("causal_conv1d", v, weight, **conv, out=out, written=(out,))
    yield _call("causal_conv1d_backward", v, weight, g, **conv)
    yield _call("causal_conv1d_step", v[..., 0, :], weight, inputs, **conv, in_place=True,
                written=(inputs,))  # fmt: skip
    for bound in None, -5.0:
        yield _call("log_decay", v, bias, bias, lower_bound=bound)
        yield _call("log_decay_backward", v, bias, bias, g, lower_bound=bound)
    yield from _maps(d, q, k, v, g)
    x = np.asarray(q, wide)
    for name in ("sigmoid", "log1p", "sin", "cos"):
        yield Call(name, internal_ufuncs[name], (abs(x),))
    for rule in RULES[len(ATTENTION) :]:  # scans
        yield from _recurrence(rule, make(rule, n, d, m, dtype=dtype, lead=lead), d, wide, normal)


def _recurrence(rule, arrays, width, wide, normal) -> Iterator[Call]:
    grad_out = arrays.pop("grad_out")
    lead, m = grad_out.shape[:-2], grad_out.shape[-1]
    shape = (*lead, *core(rule, width, m))
    normalize = rule.options.get("normalize", False)
    first, last, held = (
        State(
            normal(*shape, dtype=wide), abs(normal(*shape[:-1], dtype=wide)) if normalize else None
        )
        for _ in range(3)
    )
    out = normal(*grad_out.shape)
    options = rule.options | {"initial_state": first}
    yield _call(rule.name, **arrays, **options, out=out, return_state=True, written=(out,))
    yield _call(f"{rule.name}_backward", **arrays, grad_out=grad_out, **options, grad_state=last)
    yield _call(f"{rule.name}_backward", **arrays, grad_out=grad_out, **rule.options)
    now = {
        name: x if rule.letters[name][0] != "n" else x.take(0, len(lead))
        for name, x in arrays.items()
    }
    name, options = step_of(rule)
    yield _call(name, **now, state=held, **options, in_place=True, written=flat(held))


def _maps(d, q, k, v, g) -> Iterator[Call]:
    random = feature_maps.PositiveRandomFeatures.sample(d, 9, rng=0)
    yield _call("causal", q, k, v, feature_map=random)
    yield _call("causal_backward", q, k, v, g, feature_map=random)
    for phi in (
        random,
        feature_maps.DPFP(nu=2),
        feature_maps.Taylor(),
        feature_maps.Rebased(),
        feature_maps.L2Norm(),
        feature_maps.RandomFourierFeatures.sample(d, 9, rng=0),
        feature_maps.get("exp").normalized(),
        *(feature_maps.get(name) for name in ("relu", "elu", "softplus", "exp")),
    ):
        yield Call(str(phi), phi, (q,))
        ones = np.ones((*q.shape[:-1], phi.features(d)), q.dtype)
        yield Call(f"{phi}.input_gradient", phi.input_gradient, (q, ones))
