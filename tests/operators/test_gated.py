"""What only gated linear attention does: gates, resets, memories of any age."""

import numpy as np
import pytest
from gates import DPLR, GATED, GATED_DELTA, by_channel, compare, compare_rules, each_gated
from slow import each, grid, looped
from states import assert_same

import linattn
from linattn import State


@each(GATED + GATED_DELTA + DPLR)
@looped(dtype=["float64", "int64", "float16"])
def test_gates_have_no_say_in_the_dtype(case, dtype):
    """As scale has none: they are converted to what the tokens are computed in."""
    arrays = case.operands((), 20, d=4, m=3, dtype="float32")
    gates = {
        x.name: arrays[x.name] for x in case.row.operands if x.state_dtype and x.name in arrays
    }
    given = arrays | {x: y.astype(dtype) for x, y in gates.items()}
    single = arrays | {x: given[x].astype("f4") for x in gates}
    start = case.state((), d=4, m=3, dtype="float32")
    for more in {}, {"initial_state": start, "grad_state": start}:
        results = case.results(given, **more)
        assert {x.dtype for x in results} == {np.dtype("f4")}
        assert_same(results, case.results(single, **more))
    out = np.empty_like(arrays["v"])
    assert case.call(given, out=out) is out


@each_gated
def test_an_infinite_memory_stays_infinite(case):
    """However much of it is forgotten, in a step at any stride and over chunks."""
    arrays = case.operands((), 40, d=16, m=64, dtype="float32")
    arrays["g"] -= 1
    start = np.ones((16, 64), "f4")
    start[3, 5] = np.inf
    for memory in (start, np.asfortranarray(start)):
        _, after = case.one_step(arrays, 0, State(memory))
        np.testing.assert_array_equal(np.isinf(after.s), np.isinf(start))
    _, end = case.forward(arrays, initial_state=State(start))
    np.testing.assert_array_equal(np.isinf(end.s), np.isinf(start))


@each_gated
def test_a_nan_gate_passes_through(case):
    """All that comes after it is NaN; of one channel's, what reads that channel."""
    arrays = case.operands((), 50, d=6, dtype="float32")
    arrays["g"][20] = np.nan
    o, state = case.forward(arrays)
    first = 20 + ("bonus" in case.letters)
    assert np.isnan(o[first:]).all() and np.isfinite(o[:first]).all()
    assert np.isnan(state.s).all()


@each(GATED + GATED_DELTA + DPLR)
def test_a_reset_begins_anew(case):
    """After a gate of -inf, or one that leaves nothing, only the tokens from there on count.

    With a bonus the token still reads what was there before, and DPLR reads before the decay.
    """
    n, bonus = 70, "bonus" in case.letters
    per_token = [x for x in case.letters if case.letters[x][0] == "n"]
    for dtype, value in [("float32", -np.inf), ("float32", -1e30), ("float64", -np.inf)]:
        sizes = {"d": 17, "m": 9, "dtype": dtype}
        arrays, first = case.operands((), n, **sizes), case.state((), **sizes)
        for t in (0, 1, 5, 16, 33, 69):
            cut = arrays | {x: arrays[x].copy() for x in {"g", "a"} & arrays.keys()}
            cut["g"][t] = value
            if "a" in cut:
                cut["a"][t] = 0
            whole, rest = case.named(cut, initial_state=first), case.named(case.rows(cut, t, n))
            late = {"o": whole["o"][t + bonus :], "s": whole["s"]}
            compare_rules(late, {"o": rest["o"][bonus:], "s": rest["s"]})
            assert t < n - 1 or np.array_equal(whole["s"], rest["s"])
            assert not whole["dg"][t].any()
            assert bonus or t > 0 or not whole["ds"].any()
            cut["grad_out"] = arrays["grad_out"].copy()
            cut["grad_out"][: t + bonus] = 0
            grads = case.named(cut, initial_state=first)
            assert not any(grads[f"d{x}"][:t].any() for x in per_token)


@pytest.mark.unsanitized
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
    if "strength" in case.letters:
        arrays["strength"] = rng.uniform(0.5, 1, n).astype("f4")
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
