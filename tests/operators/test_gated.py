"""What only gated linear attention does: gates, resets, memories of any age."""

import numpy as np
import pytest
from bounds import close, roundings
from gates import GATED, ROUNDINGS, by_channel, compare, each_gated, same
from slow import grid
from states import flat

import linattn
from linattn import State


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
@pytest.mark.parametrize("name", ["gated", "gated_delta", "dplr"])
def test_gates_have_no_say_in_the_dtype_of_states(name, dtype):
    """With states and without, and in gradients."""
    x = np.eye(3, dtype=np.float32)
    g, one, start = np.zeros(3, dtype), np.ones(3, np.float32), State(2 * x)
    more = {"gated": (g,), "gated_delta": (g, one), "dplr": (-x, x, g)}[name]
    forward, backward = (getattr(linattn, name + end) for end in ("", "_backward"))
    for given in ({}, {"initial_state": start}):
        o, state = forward(x, x, x, *more, **given, return_state=True)
        assert {o.dtype, state.s.dtype} == {np.dtype("f4")}
        grads = backward(x, x, x, *more, x, **given)
        assert {y.dtype for y in flat(grads)} == {np.dtype("f4")}


@each_gated
def test_an_infinite_memory_stays_infinite(case):
    """However much of it is forgotten, in a step at any stride and over chunks."""
    arrays = case.operands((), 40, d=16, m=64, dtype="float32")
    arrays["g"] = arrays["g"] - 1
    del arrays["grad_out"]
    start = np.ones((16, 64), "f4")
    start[3, 5] = np.inf
    one = {name: x if name == "bonus" else x[0] for name, x in arrays.items()}
    with np.errstate(all="ignore"):
        for memory in (start, np.asfortranarray(start)):
            _, after = linattn.gated_step(**one, state=State(memory))
            np.testing.assert_array_equal(np.isinf(after.s), np.isinf(start))
        _, end = linattn.gated(**arrays, initial_state=State(start), return_state=True)
    np.testing.assert_array_equal(np.isinf(end.s), np.isinf(start))


def test_gates_have_no_say_in_the_dtype():
    """As scale has none: a gate is converted to what the tokens are computed in."""
    case = GATED[1]
    arrays = case.operands((), 20, d=4, m=3, dtype="float32")
    wide = {**arrays, "g": arrays["g"].astype("f8"), "bonus": arrays["bonus"].astype("f8")}
    same(case.named(wide), case.named(arrays))
    given = {name: x for name, x in wide.items() if name != "grad_out"}
    out = np.empty_like(arrays["v"])
    assert linattn.gated(**given, out=out) is out
    o = linattn.gated(*(given[name] for name in "qkv"), np.zeros(20, int))
    assert o.dtype == np.float32


@each_gated
def test_a_nan_gate_passes_through(case):
    """All that comes after it is NaN; of one channel's, what reads that channel."""
    arrays = case.operands((), 50, d=6, dtype="float32")
    arrays["g"][20] = np.nan
    o, state = case.forward(arrays)
    first = 20 + ("bonus" in case.letters)
    assert np.isnan(o[first:]).all() and np.isfinite(o[:first]).all()
    assert np.isnan(state.s).all()


@each_gated
def test_a_reset_begins_anew(case):
    """After a gate of -inf, or one that leaves nothing, only the tokens from there on count."""
    bonus = "bonus" in case.letters  # with a bonus the token still reads what was there before
    n, d = 70, 17
    for dtype, value in [("float32", -np.inf), ("float32", -1e30), ("float64", -np.inf)]:
        arrays, first = (
            case.operands((), n, d=d, m=9, dtype=dtype),
            case.state((), d=d, m=9, dtype=dtype),
        )
        gates = arrays["g"].copy()
        for t in (0, 1, 5, 16, 33, 69):
            arrays["g"] = gates.copy()
            arrays["g"][t] = value
            o, end = case.forward(arrays, initial_state=first)
            alone, last = case.forward(case.rows(arrays, t, n))
            size = abs(alone).max(initial=0) + abs(last.s).max()
            allowed = roundings(2 * ROUNDINGS["o"], np.array(size, dtype)) * d**0.5
            close(o[t + bonus :], alone[bonus:], atol=allowed)
            close(end.s, last.s, atol=allowed)
            if t == n - 1:
                np.testing.assert_array_equal(end.s, np.outer(arrays["k"][t], arrays["v"][t]))
            grads = case.named(arrays, initial_state=first)
            assert not grads["dg"][t].any()
            assert bonus or not (grads["ds"].any() and t == 0)


@grid(
    lambda case, decay: case is GATED[0] and decay == -1e-4, case=GATED[::2], decay=[-1e-4, -3e-3]
)
def test_slow_decay_of_a_long_sequence(decay, case):
    """Equal gates round alike in every chunk: the errors must not add up over thousands."""
    rng = np.random.default_rng(3)
    n, d, m = 30_000, 3, 2
    arrays = {name: rng.uniform(0.5, 1, (n, d)).astype("f4") for name in "qk"}
    arrays |= {name: rng.uniform(0.5, 1, (n, m)).astype("f4") for name in ("v", "grad_out")}
    arrays["g"] = np.full((n, d) if by_channel(case) else n, decay, "f4")
    compare(case, arrays, case.named(arrays))


@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
def test_nothing_is_lost_across_fast_decay(rule):
    """After chunks that keep less than half, the state alone determines what follows.

    What slow decay lost to rounding before must not return.
    """
    slow, fast, d = 400, 32, 16  # whole chunks
    rng = np.random.default_rng(1)
    n, cut = 2 * slow + fast, slow + fast
    operands = [*rng.uniform(0.5, 1, (3, n, d)), np.full(n, -1e-3)]
    operands[1] /= d
    operands[3][slow:cut] = -0.2
    if rule == "gated_delta":
        operands.append(rng.uniform(0.5, 1, n))
    operands = [x.astype("f4") for x in operands]
    call = getattr(linattn, rule)
    whole, last = call(*operands, return_state=True)
    _, state = call(*(x[:cut] for x in operands), return_state=True)
    rest, end = call(*(x[cut:] for x in operands), initial_state=state, return_state=True)
    np.testing.assert_array_equal(whole[cut:], rest)
    np.testing.assert_array_equal(last.s, end.s)


@pytest.mark.parametrize("case", GATED[::2], ids=str)
def test_strong_gates_sum_to_hundreds(case):
    """Exponents far out of float32's range, in runs and from token to token."""
    for pattern in ([-60], [-60, 0, 0], [-300, -0.1], [-80, -20, -1, 0], [-1e30, 0], [30, -30]):
        arrays = case.operands((), 100, d=8, m=4, dtype="float32")
        g = np.resize(np.array(pattern, "f4"), 100)
        arrays["g"] = np.stack([np.roll(g, i) for i in range(8)], -1) if by_channel(case) else g
        compare(case, arrays, case.named(arrays))
