"""Gates of any strength: memories that grow, resets of non-finite values, the range of keys."""

from itertools import product

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, close, excess
from gates import (
    DPLR,
    DTYPES,
    GATED,
    GATED_DELTA,
    by_channel,
    compare,
    each_gated,
    magnitude,
    oracle,
)
from slow import each

import linattn
from linattn import State
from linattn.reference import gated_attention as ref

#: Gates whose sums, of any run, have exponentials in range.
PATTERNS = (
    [0, 50, 20, -70], [6] * 11 + [-6] * 11, [1, -1], [30, -30, 0], [70, -70], [0, 0, 65, -40, -25],
    [3] * 20 + [-60], [60, -1, -1, -1, -57],
)  # fmt: skip


def rising(pattern, dtype, shape):
    """The pattern again and again: eight times as much of it in float64, and half of it where
    there is a gate a channel, whose range is that much less."""
    unit = np.array(pattern, dtype) * (8 if dtype == "float64" else 1)
    n, *channels = shape
    if not channels:
        return np.resize(unit, n)
    return np.stack([np.resize(np.roll(unit / 2, i), n) for i in range(channels[0])], -1)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@each_gated
def test_growing_memories(pattern, case):
    """Right as long as the memory is finite, forward and backward.

    Short, for what is not forgotten is rounded once more with every chunk, here every token.
    """
    for dtype, n, d, m in (("float32", 30, 8, 4), ("float64", 30, 8, 4), ("float32", 20, 72, 20)):
        arrays = case.operands((), n, d=d, m=m, dtype=dtype)
        arrays["g"] = rising(pattern, dtype, arrays["g"].shape)
        more = ends(case, d=d, m=m, dtype=dtype)
        compare(case, arrays, case.named(arrays, **more), **more)


def ends(case, **sizes):
    """An initial state, and the gradient of the final one."""
    first, last = (case.state((), seed=seed, **sizes) for seed in (1, 2))
    return {"initial_state": first, "grad_state": last}


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(
    "case", [x for x in GATED_DELTA + DPLR if "erase" not in x.letters], ids=str
)
def test_growing_memories_of_rules(pattern, case):
    """The same, each row within roundings of what it could be if no key were ever erased.

    Gates are alike in all channels, and DPLR reads what is decayed: what is erased lets nothing
    grow then.
    """
    for dtype in DTYPES:
        arrays = case.operands((), 30, d=8, dtype=dtype)
        channels, a = by_channel(case), arrays.get("a")
        g = rising(pattern, dtype, (30,)) / (2 if channels else 1)
        arrays["g"] = np.repeat(g[:, None], 8, 1) if channels else g
        if case.name == "dplr":
            arrays["a"] = a * np.exp(g)[:, None]
        plain = GATED[2 * channels]
        sizes = magnitude(plain, {name: arrays[name] for name in ("q", "k", "v", "g", "grad_out")})
        actual, expected = case.named(arrays), oracle(case, arrays)
        for name in ("o", "s", "dq", "dv"):
            size = sizes[name].max(-1, keepdims=True) if name != "s" else sizes[name].max()
            allowed = DELTA_ROUNDINGS * np.finfo(dtype).eps / 2 * size
            assert excess(actual[name], expected[name], allowed * np.ones_like(actual[name])) <= 1
        # Others are made of products of the memory and its gradient: less may grow there.
        arrays["g"] = arrays["g"] / 4
        if case.name == "dplr":
            arrays["a"] = a * np.exp(g / 4)[:, None]
        assert all(np.isfinite(x).all() for x in case.named(arrays).values())


def test_the_sums_that_were_nan():
    """Exponentials of sums overflow where what they multiply is 0, or small."""
    one, k = np.ones((4, 1), "f4"), np.full((4, 1), 1e-10, "f4")
    o = linattn.gated(one, k, one, np.array([0, 50, 39, -50], "f4"))
    close(o[2:, 0], [4.4896129e28, 8.6593411e6], atol=0, rtol=1e-6)
    g = np.array([6] * 16 + [-6] * 16, "f4")
    one = np.ones((32, 1), "f4")
    o, state = linattn.gated(one, one * np.float32(1e-6), one, g, return_state=True)
    assert np.isfinite(o).all() and np.isfinite(state.s).all()


@each_gated
def test_chunks_end_by_earlier_gates_alone(case):
    """No bit of an output hangs on a later gate that makes the memory grow."""
    for dtype, d in (("float32", 5), ("float64", 72), ("float32", 200)):
        arrays = case.operands((), 140, d=d, m=9, dtype=dtype)
        rng = np.random.default_rng(1)
        arrays["g"] = rng.uniform(-25, 24, arrays["g"].shape).astype(dtype)
        clean = case.call(arrays)
        for t in range(0, 140, 7):
            for value in (np.nan, 45.0, 1e30, -np.inf):
                g = arrays["g"].copy()
                g[t:] = value
                o = case.call(arrays | {"g": g})
                np.testing.assert_array_equal(o[:t], clean[:t], err_msg=f"{t}, {value}")


# --- resets -------------------------------------------------------------------


def same(actual, clean, rows):
    """Whether results have the same bits, from some row on or before it."""
    for name, kept in rows.items():
        np.testing.assert_array_equal(actual[name][kept], clean[name][kept], err_msg=name)


def reset(case, t, dtype):
    """Operands with a reset at a token, states, and the names of gradients of tokens."""
    sizes = {"d": 6, "m": 5, "dtype": dtype}
    arrays = case.operands((), 40, **sizes)
    arrays["g"][t] = -np.inf
    return arrays, ends(case, **sizes), [f"d{x}" for x, y in case.letters.items() if "n" in y]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@each(GATED + GATED_DELTA)
def test_a_reset_forgets_what_is_not_finite(case, value):
    """In an initial state, a value or a key, at any place of a chunk: as if it had been 0."""
    for dtype, where, t in product(DTYPES, ("state", "k", "v"), (0, 1, 2, 15, 16, 17, 31, 39)):
        good, more, names = reset(case, t, dtype)
        bad = good | {"k": good["k"].copy(), "v": good["v"].copy()}
        s = more["initial_state"].s.copy()
        if where == "state":
            s[2, 3] = value
        elif t > 0:
            bad[where][t - 1, 2] = value
        actual = case.named(bad, **more | {"initial_state": State(s)})
        late, later = slice(t, None), slice(t + ("bonus" in case.letters), None)
        rows = dict.fromkeys(names, late) | {"o": later, "dq": later, "s": ...}
        same(actual, case.named(good, **more), rows)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@each(GATED + GATED_DELTA)
def test_a_reset_forgets_gradients_that_are_not_finite(case, value):
    """What lies before it gets nothing from a cotangent after it."""
    for t in (0, 1, 15, 16, 17, 31, 39):
        good, more, names = reset(case, t, "float32")
        bad = good | {"grad_out": good["grad_out"].copy()}
        bad["grad_out"][t + ("bonus" in case.letters) :, 1] = value
        worse = more | {"grad_state": State(np.full_like(more["grad_state"].s, value))}
        rows = dict.fromkeys(names, slice(t)) | {"dg": slice(t + 1), "ds": ...}
        same(case.named(bad, **worse), case.named(good, **more), rows)


@pytest.mark.parametrize("case", DPLR, ids=str)
def test_a_reset_of_dplr(case):
    """It reads the memory before its decay, and so what is not finite in it."""
    for t, value in product((0, 1, 15, 16, 17, 39), (np.nan, np.inf)):
        arrays, more, _ = reset(case, t, "float32")
        more["initial_state"].s[1, 2] = value
        assert not np.isfinite(case.named(arrays, **more)["s"]).all()


@each(GATED + GATED_DELTA)
def test_a_reset_in_a_step(case):
    """Rows of a state that hold inf and NaN are 0 before the write, at any stride."""
    rows = slice(0, 3) if by_channel(case) else slice(None)
    for dtype, (d, m) in product((*DTYPES, "float16"), ((5, 3), (16, 70))):
        operands = case.operands((), 1, d=d, m=m, dtype=dtype)
        operands["g"][(0, rows) if by_channel(case) else 0] = -np.inf
        clean = case.state((), d=d, m=m, dtype="float32" if dtype == "float16" else dtype).s
        bad = clean.copy()
        clean[rows], bad[rows], bad[1, 1] = 0, np.nan, np.inf
        for order in ("C", "F"):
            o, state = case.one_step(operands, 0, State(np.asarray(bad, order=order)))
            expected, after = case.one_step(operands, 0, State(np.asarray(clean, order=order)))
            np.testing.assert_array_equal(state.s, after.s)
            if "bonus" in case.letters:  # with it the token reads what was there
                assert np.isnan(o).any()
            else:
                np.testing.assert_array_equal(o, expected)


# --- the range of keys and queries --------------------------------------------


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 2.0**68), ("float64", 2.0**588)])
def test_the_range_of_a_gate_a_channel(dtype, largest):
    """Keys as large as docs/mathematics/gated.md says, queries as small, and the other way."""
    for big, small in ((largest, 1 / largest), (1 / largest, largest)):
        for strength in (-0.1, -5.0, -60.0):
            arrays = GATED[2].operands((), 70, d=8, m=4, dtype=dtype)
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
