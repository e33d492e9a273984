"""Steps of several heads, which a kernel computes in one call, beside those of each head."""

import numpy as np
import pytest

import linattn
from linattn import State
from linattn.ufuncs import gated_step_identity

HEADS, D, M = 5, 20, 150


def rows(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(name):
    """Those of a step before the state; gates reset the state of one head, or a row of another."""
    q, k, v = rows(HEADS, D), rows(HEADS, D, seed=1), rows(HEADS, M, seed=2)
    g, gk = -np.abs(rows(HEADS, seed=3)), -np.abs(rows(HEADS, D, seed=4))
    g[2], gk[3, 7] = -np.inf, -np.inf
    beta = np.abs(rows(HEADS, seed=5))
    return {
        "step": (q, k, v),
        "delta_step": (q, k, v, beta),
        "gated_step": (q, k, v, g),
        "gated_step by channel": (q, k, v, gk),
        "gated_delta_step": (q, k, v, g, beta),
        "gated_delta_step by channel": (q, k, v, gk, rows(HEADS, M, seed=6)),
        "dplr_step": (q, k, v, rows(HEADS, D, seed=7), rows(HEADS, D, seed=8), gk),
    }[name]


NAMES = [
    "step", "delta_step", "gated_step", "gated_step by channel", "gated_delta_step",
    "gated_delta_step by channel", "dplr_step",
]  # fmt: skip


def state_of(name):
    s = rows(HEADS, D, M, seed=9)
    return State(s, np.abs(rows(HEADS, D, seed=10))) if name == "step" else State(s)


def copy(state):
    return State(*(None if x is None else x.copy() for x in state))


def arrays(result):
    o, state = result
    return [o, *(x for x in state if x is not None)]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_the_bits_of_each_head(name, in_place):
    step, args, state = getattr(linattn, name.split()[0]), operands(name), state_of(name)
    each = [
        arrays(step(*(x[h] for x in args), State(*(x if x is None else x[h] for x in state))))
        for h in range(HEADS)
    ]
    before = copy(state)
    result = step(*args, state, in_place=in_place)
    for x, parts in zip(arrays(result), zip(*each, strict=True), strict=True):
        np.testing.assert_array_equal(x, np.stack(parts))
    assert (result[1] is state) is in_place
    if not in_place:
        for x, y in zip(state, before, strict=True):
            np.testing.assert_array_equal(x, y)


def test_runs_on_several_threads(threads):
    q, k, v, s = rows(70, 64), rows(70, 64), rows(70, 130), rows(70, 64, 130)
    beta = np.ones(70, np.float32)
    threads(1)
    expected = arrays(linattn.delta_step(q, k, v, beta, State(s)))
    threads(3)
    for x, y in zip(arrays(linattn.delta_step(q, k, v, beta, State(s))), expected, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_states_of_any_layout(name):
    step, args, state = getattr(linattn, name.split()[0]), operands(name), state_of(name)
    expected = arrays(step(*args, copy(state), in_place=True))
    spread = State(np.repeat(state.s, 2, axis=-2)[:, ::2], state.z)
    turned = State(np.ascontiguousarray(state.s.mT).mT, state.z)
    for other in (spread, turned):
        for in_place in (False, True):
            result = step(*args, copy_of(other), in_place=in_place)
            for x, y in zip(arrays(result), expected, strict=True):
                np.testing.assert_array_equal(x, y)


def copy_of(state):
    """A copy with the same strides."""
    s = state.s.base.copy()
    s = s.mT if s.shape[-1] != M else s[:, ::2]
    return State(s, None if state.z is None else state.z.copy())


@pytest.mark.parametrize("name", NAMES)
def test_states_and_operands_broadcast(name):
    step, args, state = getattr(linattn, name.split()[0]), operands(name), state_of(name)
    one = State(*(None if x is None else x[:1] for x in state))
    whole = State(*(None if x is None else np.repeat(x, HEADS, 0) for x in one))
    pairs = zip(arrays(step(*args, one)), arrays(step(*args, whole)), strict=True)
    for x, y in pairs:
        np.testing.assert_array_equal(x, y)


def test_a_state_with_more_heads_than_the_operands():
    q, k, v = (x[:1] for x in operands("step"))
    with pytest.raises(ValueError, match=r"gated_step: state\.s has shape \(5, 20, 150\)"):
        linattn.gated_step(q, k, v, np.zeros(1, np.float32), State(rows(HEADS, D, M)))


def test_numbers_that_differ_between_heads():
    q, k, v, g = operands("gated_step")
    s, scale = state_of("gated_step").s, rows(HEADS, seed=11)
    o, after = gated_step_identity(q, k, v, g, scale, s)
    for h in range(HEADS):
        one, end = linattn.gated_step(q[h], k[h], v[h], g[h], State(s[h]), scale=float(scale[h]))
        np.testing.assert_array_equal(o[h], one)
        np.testing.assert_array_equal(after[h], end.s)
