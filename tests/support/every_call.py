"""A call of every public operator, and of every kind of each recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from fused_cases import Layer
from fused_cases import make as make_layer
from states import flat
from table import ATTENTION, RULES

import linattn
from linattn import State, feature_maps
from linattn._core.gufuncs import internal_ufuncs


class Call(NamedTuple):
    """A call; `written` are the caller's arrays that it writes to."""

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
    """Calls on arrays of shapes (*lead, n, d) and (*lead, n, m)."""
    wide = np.promote_types(dtype, np.float32)
    rng = np.random.default_rng(0)

    def normal(*shape: int, dtype=dtype) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    for rule in ATTENTION:
        yield from _recurrence(rule, rule.operands(lead, n, d=d, m=m, dtype=dtype), d, wide, normal)
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
        yield from _recurrence(rule, rule.operands(lead, n, d=d, m=m, dtype=dtype), d, wide, normal)
    yield from _scaled(q, k, v, g, wide, normal)
    yield from _slstm(lead, n, d, wide, normal)
    if wide == dtype:
        yield from _complex(v.shape, normal)
    if d and m:  # a fused step refuses others
        yield from _fused(lead, d, m, dtype)


def _recurrence(rule, arrays, width, wide, normal) -> Iterator[Call]:
    grad_out = arrays.pop("grad_out")
    lead, m = grad_out.shape[:-2], grad_out.shape[-1]
    shape = (*lead, *rule.core(width, m))
    normalize = rule.options.get("normalize", False)

    def state():
        s = normal(*shape, dtype=wide)
        if rule.row.stacked:
            return State(s, normal(*shape, dtype=wide))
        return State(s, abs(normal(*shape[:-1], dtype=wide)) if normalize else None)

    states = [state() for _ in range(3)]
    now = {
        name: x if rule.letters[name][0] != "n" else x.take(0, len(lead))
        for name, x in arrays.items()
    }
    step = rule.step, rule.step_options
    yield from _series(rule.name, arrays, grad_out, rule.options, now, states, step)
    yield _call(f"{rule.name}_backward", **arrays, grad_out=grad_out, **rule.options)


def _series(name, arrays, grad_out, options, now, states, step=None) -> Iterator[Call]:
    """A recurrence with a state, its gradients, and a step with the operands of a token."""
    first, last, held = states
    out = np.zeros_like(grad_out)
    begun = arrays | options | {"initial_state": first}
    yield _call(name, **begun, out=out, return_state=True, written=(out,))
    yield _call(f"{name}_backward", **begun, grad_out=grad_out, grad_state=last)
    name, options = step or (f"{name}_step", options)
    yield _call(name, **now, state=held, **options, in_place=True, written=flat(held))


def _scaled(q, k, v, g, wide, normal) -> Iterator[Call]:
    """Recurrences with states relative to an exponential."""
    lead, n, d, m = v.shape[:-2], *q.shape[-2:], v.shape[-1]

    def states(*shapes: tuple[int, ...]) -> list[State]:
        drawn = [[np.asarray(normal(*x, dtype=wide)) for x in shapes] for _ in range(3)]
        return [State(*(np.abs(x, out=x) for x in fields)) for fields in drawn]

    tokens = {"q": q, "k": k, "v": v, "i": normal(*lead, n), "f": normal(*lead, n)}
    now = {name: x.take(0, len(lead)) for name, x in tokens.items()}
    held = states((*lead, d, m), (*lead, d), lead)
    yield from _series("mlstm", tokens, g, {}, now, held)
    channels = {"w": abs(normal(m)), "u": normal(m)}
    tokens = {"k": g, "v": v}
    now = {name: x.take(0, len(lead)) for name, x in tokens.items()}
    held = states(*[(*lead, m)] * 3)
    yield from _series("wkv", tokens | channels, g, {}, now | channels, held)


def _slstm(lead, n, d, wide, normal) -> Iterator[Call]:
    """Two heads of xLSTM's scalar memory."""
    held = [
        linattn.SLSTMState(*(abs(normal(*lead, 2, d, dtype=wide)) for _ in range(4)))
        for _ in range(3)
    ]
    tokens, weights = {"x": normal(*lead, n, 4, 2, d)}, {"R": normal(4, 2, d, d) / (d + 1)}
    weights = {name: x.astype(tokens["x"].dtype) for name, x in weights.items()}
    weights["b"] = normal(4, 2, d)
    now = {"x": tokens["x"].take(0, len(lead))} | weights
    yield from _series("slstm", tokens | weights, normal(*lead, n, 2, d), {}, now, held)
    if wide == tokens["x"].dtype:
        given = [x.astype(wide) for x in (*tokens.values(), *weights.values())]
        for name, more in ("slstm_states", ()), ("slstm_states_backward", given[:1]):
            yield Call(name, internal_ufuncs[name], (*given, *more, *held[0]))


def _complex(shape, normal) -> Iterator[Call]:
    """The scan of complex numbers, which has kernels of its own."""
    x, grad_out = (normal(*shape) + 1j * normal(*shape) for _ in range(2))
    arrays = {"a": x / (1 + abs(x)), "x": x}
    now = {name: y.take(0, len(shape) - 2) for name, y in arrays.items()}
    states = [State(now["x"].copy()) for _ in range(3)]
    yield from _series("linear_scan", arrays, grad_out, {}, now, states)


def _fused(lead, d, m, dtype) -> Iterator[Call]:
    """Fused steps of a layer, with every optional operand."""
    for name in ("fused_gated_delta_step", "fused_gated_step"):
        operands, state, options = make_layer(name, Layer(1, 2, d, m), lead, np.dtype(dtype))
        yield _call(name, *operands, state, **options, in_place=True, written=state)


def _maps(d, q, k, v, g) -> Iterator[Call]:
    random = []
    if d:  # there are no directions of width 0
        random = [feature_maps.PositiveRandomFeatures.sample(d, 9, rng=0),
                  feature_maps.RandomFourierFeatures.sample(d, 9, rng=0)]  # fmt: skip
        yield _call("causal", q, k, v, feature_map=random[0])
        yield _call("causal_backward", q, k, v, g, feature_map=random[0])
    for phi in (
        *random,
        feature_maps.DPFP(nu=2),
        feature_maps.Taylor(),
        feature_maps.Rebased(),
        feature_maps.L2Norm(),
        feature_maps.get("exp").normalized(),
        *(feature_maps.get(name) for name in ("relu", "elu", "softplus", "exp")),
    ):
        yield Call(str(phi), phi, (q,))
        ones = np.ones((*q.shape[:-1], phi.features(d)), q.dtype)
        yield Call(f"{phi}.input_gradient", phi.input_gradient, (q, ones))
