"""Steps of several heads, which a kernel computes in one call, beside those of each head."""

import numpy as np
import pytest
from slow import each
from states import flat
from table import ATTENTION, apply, rows, same

import linattn
from linattn import State
from linattn.ufuncs import gated_step_identity

HEADS, D, M = 5, 20, 150
EACH = each(ATTENTION)


def drawn(case):
    """Operands, whose gates reset the state of one head, or a row of another; and a state."""
    sizes = {"d": D, "m": M, "dtype": "float32"}
    operands = case.operands((HEADS,), 1, **sizes)
    if "g" in operands:
        operands["g"][2 if case.letters["g"] == "n" else (3, 0, 7)] = -np.inf
    return operands, case.state((HEADS,), **sizes)


@EACH
@pytest.mark.parametrize("in_place", [True, False])
def test_a_run_has_the_bits_of_each_head(case, in_place):
    operands, state = drawn(case)
    each = [
        flat(case.one_step({x: y[h] for x, y in operands.items()}, 0, rows(state, h)))
        for h in range(HEADS)
    ]
    before = apply(np.array, state)
    result = case.one_step(operands, 0, state, in_place=in_place)
    for x, *parts in zip(flat(result), *each, strict=True):
        np.testing.assert_array_equal(x, np.stack(parts))
    assert (result[1] is state) is in_place
    assert in_place or same(state, before)


@EACH
def test_states_broadcast(case):
    operands, state = drawn(case)
    one, whole = rows(state, [0]), rows(state, [0] * HEADS)
    assert same(case.one_step(operands, 0, one), case.one_step(operands, 0, whole))


def test_numbers_that_differ_between_heads():
    case = next(x for x in ATTENTION if x.name == "gated")
    operands, state = drawn(case)
    q, k, v, g = case.token(operands, 0).values()
    scale = np.random.default_rng(0).standard_normal(HEADS).astype(np.float32)
    o, after = gated_step_identity(q, k, v, g, scale, state.s)
    for h in range(HEADS):
        given = q[h], k[h], v[h], g[h], State(state.s[h])
        one, end = linattn.gated_step(*given, scale=float(scale[h]))
        np.testing.assert_array_equal(o[h], one)
        np.testing.assert_array_equal(after[h], end.s)
