"""A call of every public operator, and of every kind of each recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from fused_cases import Layer
from fused_cases import make as make_layer
from states import flat
from table import ALL, ATTENTION, CASES, COMPLEX, FIRST, RULES

import linattn
from linattn import feature_maps
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

    for case in ATTENTION:
        yield from _recurrence(case, lead, n, d, m, dtype)
    q, k, v, g = (normal(*lead, n, x) for x in (d, d, m, m))
    out = normal(*lead, n, m)
    for case in (x for x in ALL if not x.held):
        *given, grad_out = case.operands(lead, n, s=n, d=d, m=m, dtype=dtype).values()
        yield _call(case.name, *given, **case.options, out=out, written=(out,))
        yield _call(f"{case.name}_backward", *given, grad_out, **case.options)
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
    scans = [x for x in CASES if x in RULES or x in FIRST]
    scans = [x for x in scans if x not in ATTENTION and x.name != "causal_conv1d"]
    for case in scans + COMPLEX[:1]:
        yield from _recurrence(case, lead, n, d, m, dtype)
    if wide == dtype:
        (case,) = (x for x in scans if x.name == "slstm")
        given = [*case.operands(lead, n, d=d, m=m, dtype=wide).values()][:-1]
        state = case.state(lead, d=d, m=m, dtype=wide)
        for name, more in ("slstm_states", ()), ("slstm_states_backward", given[:1]):
            yield Call(name, internal_ufuncs[name], (*given, *more, *state))
    if d and m:  # a fused step refuses others
        yield from _fused(lead, d, m, dtype)


def _recurrence(case, lead, n, d, m, dtype) -> Iterator[Call]:
    """With a state and without one, its gradients, and a step."""
    sizes = {"d": d, "m": m}
    arrays = case.operands(lead, n, **sizes, dtype=dtype)
    wide = np.promote_types(dtype, np.float32)
    first, last, held = (case.state(lead, **sizes, dtype=wide, seed=x) for x in range(3))
    token, grad_out = case.token(arrays, 0) if n else {}, arrays.pop("grad_out")
    out, begun = np.zeros_like(grad_out), arrays | case.options | {"initial_state": first}
    yield _call(case.name, **begun, out=out, return_state=True, written=(out,))
    yield _call(f"{case.name}_backward", **begun, grad_out=grad_out, grad_state=last)
    yield _call(case.step, **token, state=held, **case.step_options, in_place=True,
                written=flat([held]))  # fmt: skip
    yield _call(f"{case.name}_backward", **arrays, grad_out=grad_out, **case.options)


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
