"""Gates of any strength: memories that grow, resets of non-finite values, the range of keys."""

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, close, excess
from gated_calls import both, oracle, states
from gates import KINDS as GATED
from gates import Case, compare, magnitude, make
from rules import DPLR, GATED_DELTA
from rules import KINDS as RULES
from rules import make as make_rule

import linattn
from linattn import State
from linattn.reference import gated_attention as ref

DTYPES = ("float32", "float64")
#: Gates whose sums, of any run, have exponentials in range.
PATTERNS = (
    [0, 50, 20, -70], [6] * 11 + [-6] * 11, [1, -1], [30, -30, 0], [70, -70], [0, 0, 65, -40, -25],
    [3] * 20 + [-60], [60, -1, -1, -1, -57],
)  # fmt: skip


def rising(pattern, case, channels):
    """The pattern again and again: eight times as much of it in float64, and half of it where
    there is a gate a channel, whose range is that much less."""
    unit = np.array(pattern, case.dtype) * (8 if case.dtype == "float64" else 1)
    if not channels:
        return np.resize(unit, case.n)
    return np.stack([np.resize(np.roll(unit / 2, i), case.n) for i in range(case.d)], -1)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@GATED
def test_growing_memories(pattern, channels, bonus):
    """Right as long as the memory is finite, forward and backward.

    Short, for what is not forgotten is rounded once more with every chunk, here every token.
    """
    for dtype, n, d, m in (("float32", 30, 8, 4), ("float64", 30, 8, 4), ("float32", 20, 72, 20)):
        case = Case(n, d, m, (), channels, bonus, dtype=dtype)
        arrays = make(case) | {"g": rising(pattern, case, channels)}
        first, last = states(case)
        more = {"initial_state": first, "grad_state": last}
        compare(case, arrays, both(linattn, case, arrays, **more), **more)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("kind", [x for x in GATED_DELTA + DPLR if not x.erase], ids=str)
def test_growing_memories_of_rules(pattern, kind):
    """The same, each row within roundings of what it could be if no key were ever erased.

    Gates are alike in all channels, and DPLR reads what is decayed: what is erased lets nothing
    grow then.
    """
    for dtype in DTYPES:
        case = kind._replace(n=30, d=8, m=5, dtype=dtype)
        arrays = make_rule(case)
        g = rising(pattern, case, False) / (2 if case.key_channels else 1)
        arrays["g"] = np.repeat(g[:, None], case.d, 1) if case.key_channels else g
        if case.rule == "dplr":
            arrays["a"] *= np.exp(g)[:, None]
        plain = Case(case.n, case.d, case.m, channels=case.key_channels, dtype=dtype)
        sizes = magnitude(plain, {name: arrays[name] for name in ("q", "k", "v", "g", "grad_out")})
        with np.errstate(all="ignore"):
            actual, expected = both(linattn, case, arrays), oracle(case, arrays)
        for name in ("o", "s", "dq", "dv"):
            size = sizes[name].max(-1, keepdims=True) if name != "s" else sizes[name].max()
            allowed = DELTA_ROUNDINGS * np.finfo(dtype).eps / 2 * size
            assert excess(actual[name], expected[name], allowed * np.ones_like(actual[name])) <= 1
        # Others are made of products of the memory and its gradient: less may grow there.
        arrays["g"] = arrays["g"] / 4
        if case.rule == "dplr":
            arrays["a"] = make_rule(case)["a"] * np.exp(g / 4)[:, None]
        assert all(np.isfinite(x).all() for x in both(linattn, case, arrays).values())


def test_the_sums_that_were_nan():
    """Exponentials of sums overflow where what they multiply is 0, or small."""
    one, k = np.ones((4, 1), "f4"), np.full((4, 1), 1e-10, "f4")
    o = linattn.gated(one, k, one, np.array([0, 50, 39, -50], "f4"))
    close(o[2:, 0], [4.4896129e28, 8.6593411e6], atol=0, rtol=1e-6)
    g = np.array([6] * 16 + [-6] * 16, "f4")
    one = np.ones((32, 1), "f4")
    o, state = linattn.gated(one, one * np.float32(1e-6), one, g, return_state=True)
    assert np.isfinite(o).all() and np.isfinite(state.s).all()


@GATED
def test_chunks_end_by_earlier_gates_alone(channels, bonus):
    """No bit of an output hangs on a later gate that makes the memory grow."""
    for dtype, d in (("float32", 5), ("float64", 72), ("float32", 200)):
        case = Case(140, d, 9, (), channels, bonus, dtype=dtype)
        arrays = make(case)
        del arrays["grad_out"]
        rng = np.random.default_rng(1)
        arrays["g"] = rng.uniform(-25, 24, arrays["g"].shape).astype(dtype)
        clean = linattn.gated(**arrays)
        for t in range(0, case.n, 7):
            for value in (np.nan, 45.0, 1e30, -np.inf):
                g = arrays["g"].copy()
                g[t:] = value
                with np.errstate(all="ignore"):
                    o = linattn.gated(**{**arrays, "g": g})
                np.testing.assert_array_equal(o[:t], clean[:t], err_msg=f"{t}, {value}")


# --- resets -------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@GATED
def test_a_reset_forgets_what_is_not_finite(channels, bonus, value):
    """In an initial state, a value or a key, at any place of a chunk: as if it had been 0."""
    for dtype in DTYPES:
        case = Case(40, 6, 5, (), channels, bonus, dtype=dtype)
        arrays, (first, last) = make(case), states(case)
        for where in ("state", "k", "v"):
            for t in (0, 1, 2, 15, 16, 17, 31, 39):
                g = arrays["g"].copy()
                g[t] = -np.inf
                bad = {**arrays, "g": g, "k": arrays["k"].copy(), "v": arrays["v"].copy()}
                s = first.s.copy()
                if where == "state":
                    s[2, 3] = value
                elif t > 0:
                    bad[where][t - 1, 2] = value
                more = {"initial_state": State(s), "grad_state": last}
                actual = both(linattn, case, bad, **more)
                good = {**arrays, "g": g}
                clean = both(linattn, case, good, initial_state=first, grad_state=last)
                for name, after in (("o", t + bonus), ("dq", t + bonus), ("dk", t), ("dv", t)):
                    np.testing.assert_array_equal(actual[name][after:], clean[name][after:])
                np.testing.assert_array_equal(actual["s"], clean["s"])
                np.testing.assert_array_equal(actual["dg"][t:], clean["dg"][t:])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@GATED
def test_a_reset_forgets_gradients_that_are_not_finite(channels, bonus, value):
    """What lies before it gets nothing from a cotangent after it."""
    case = Case(40, 6, 5, (), channels, bonus)
    arrays, (first, last) = make(case), states(case)
    for t in (0, 1, 15, 16, 17, 31, 39):
        arrays["g"] = make(case)["g"]
        arrays["g"][t] = -np.inf
        bad = {**arrays, "grad_out": arrays["grad_out"].copy()}
        bad["grad_out"][t + bonus :, 1] = value
        clean = both(linattn, case, arrays, initial_state=first, grad_state=last)
        worse = State(np.full_like(last.s, value))
        actual = both(linattn, case, bad, initial_state=first, grad_state=worse)
        for name in ("dq", "dk", "dv"):
            np.testing.assert_array_equal(actual[name][:t], clean[name][:t], err_msg=name)
        np.testing.assert_array_equal(actual["dg"][: t + 1], clean["dg"][: t + 1])
        np.testing.assert_array_equal(actual["ds"], clean["ds"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@RULES
def test_a_reset_of_the_delta_rule(kind, value):
    """Likewise; DPLR reads the memory before its decay, and so what is not finite in it."""
    case = kind._replace(n=40, dtype="float32")
    arrays, (first, last) = make_rule(case), states(case)
    for t in (0, 1, 15, 16, 17, 39):
        good = {**arrays, "g": arrays["g"].copy()}
        good["g"][t] = -np.inf
        s = first.s.copy()
        s[1, 2] = value
        actual = both(linattn, case, good, initial_state=State(s), grad_state=last)
        clean = both(linattn, case, good, initial_state=first, grad_state=last)
        if case.rule == "dplr":
            assert not np.isfinite(actual["s"]).all()
            continue
        for name in ("o", "dq", "dk", "dv", "dg", "dbeta"):
            np.testing.assert_array_equal(actual[name][t:], clean[name][t:], err_msg=name)
        np.testing.assert_array_equal(actual["s"], clean["s"])
        bad = {**good, "grad_out": good["grad_out"].copy()}
        bad["grad_out"][t:] = value
        actual = both(linattn, case, bad, initial_state=first, grad_state=last)
        for name in ("dq", "dk", "dv", "dbeta"):
            np.testing.assert_array_equal(actual[name][:t], clean[name][:t], err_msg=name)
        np.testing.assert_array_equal(actual["dg"][: t + 1], clean["dg"][: t + 1])
        np.testing.assert_array_equal(actual["ds"], clean["ds"])


@pytest.mark.parametrize("name", ["gated", "gated_delta"])
@pytest.mark.parametrize("channels", [False, True])
def test_a_reset_in_a_step(name, channels):
    """Rows of a state that hold inf and NaN are 0 before the write, at any stride."""
    rng = np.random.default_rng(0)
    for dtype in (*DTYPES, "float16"):
        for d, m in ((5, 3), (16, 70)):
            q, k, v = (rng.standard_normal(size).astype(dtype) for size in (d, d, m))
            wide = "float32" if dtype == "float16" else dtype
            g = np.full(d, -0.5, wide) if channels else np.float32(-np.inf)
            s = rng.standard_normal((d, m)).astype(wide)
            rows = slice(0, 3) if channels else slice(None)
            if channels:
                g[rows] = -np.inf
            clean, bad = s.copy(), s.copy()
            clean[rows], bad[rows] = 0, np.nan
            bad[1, 1] = np.inf
            more = () if name == "gated" else (np.asarray(0.5, dtype),)
            step = getattr(linattn, f"{name}_step")
            for order in ("C", "F"):
                o, state = step(q, k, v, g, *more, State(np.asarray(bad, order=order)))
                expected = step(q, k, v, g, *more, State(np.asarray(clean, order=order)))
                np.testing.assert_array_equal(o, expected[0])
                np.testing.assert_array_equal(state.s, expected[1].s)
            if name == "gated":  # with a bonus it reads what was there
                o, state = step(q, k, v, g, State(bad), bonus=np.ones(d, dtype))
                expected = step(q, k, v, g, State(clean), bonus=np.ones(d, dtype))
                assert np.isnan(o).any()
                np.testing.assert_array_equal(state.s, expected[1].s)


# --- the range of keys and queries --------------------------------------------


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 2.0**68), ("float64", 2.0**588)])
def test_the_range_of_a_gate_a_channel(dtype, largest):
    """Keys as large as docs/mathematics/gated.md says, queries as small, and the other way."""
    for big, small in ((largest, 1 / largest), (1 / largest, largest)):
        for strength in (-0.1, -5.0, -60.0):
            case = Case(70, 8, 4, channels=True, dtype=dtype)
            arrays = make(case)
            arrays["g"] = np.full_like(arrays["g"], strength)
            signs = {name: np.sign(arrays[name]) for name in "qk"}
            arrays |= {"q": signs["q"] * small, "k": signs["k"] * big}
            arrays = {name: x.astype(dtype) for name, x in arrays.items()}
            del arrays["grad_out"]
            o = linattn.gated(**arrays, scale=0.5)
            wide = {name: x.astype(np.longdouble) for name, x in arrays.items()}
            size = ref.gated(**{n: abs(x) if n != "g" else x for n, x in wide.items()}, scale=0.5)
            allowed = 12 * np.finfo(dtype).eps / 2 * size
            assert excess(o, ref.gated(**wide, scale=0.5), allowed) <= 1
