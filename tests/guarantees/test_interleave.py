"""Heads whose rows alternate in memory are interleaved, with the same bits."""

import numpy as np
import pytest
from slow import grid
from states import assert_same, flat
from table import ATTENTION

import linattn
from linattn import ufuncs

#: So far apart that their rows leave the caches, not whole chunks, heads that do not part evenly.
B, H, N, D = 2, 7, 611, 64


def woven(x):
    """Tokens first, then heads, in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 2)), 2, 1)


STATES = {
    "alone": {},
    "final": {"return_state": True},
    "one sequence": {"cu_seqlens": [0, N], "return_state": True},
    "lengths": {"key_lengths": np.array([[0], [300]]), "return_state": True},
}


@grid(lambda case, states: states == "final" or case is ATTENTION[0], case=ATTENTION, states=STATES)
def test_interleaving_changes_no_bit(threads, case, states, dtype="float32", n=N, d=D):
    given = case.operands((B, H), n, d=d, m=d, dtype=dtype)
    if "g" in given:
        given["g"][np.random.default_rng(7).random(given["g"].shape) < 0.002] = -300  # ends chunks
        given["g"][:, :, 100] = -np.inf
    views = {name: woven(x) for name, x in given.items()}
    expected = case.call(given, **STATES[states])
    for count in (1, 2, 3):
        threads(count)
        out = woven(np.full((B, H, n, d), np.nan, dtype))
        found = case.call(views, out=out, **STATES[states])
        assert flat(found)[0] is out
        assert_same(found, expected, f"{count} threads")


@pytest.mark.parametrize(("dtype", "n", "d"), [("float16", 1250, 64), ("float64", N, 32)])
def test_other_dtypes(threads, dtype, n, d):
    gated = next(x for x in ATTENTION if x.name == "gated")
    test_interleaving_changes_no_bit(threads, gated, "final", dtype, n, d)


@pytest.mark.parametrize("lengths", [None, np.array([[0], [300]])], ids=["all", "lengths"])
@pytest.mark.parametrize("keys", [N, 5, 0])
def test_noncausal(threads, keys, lengths):
    """It passes over the keys, of which heads may have none, and then over the queries."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((B, H, n, D), dtype="float32") for n in (N, keys, keys))
    given = {} if lengths is None else {"key_lengths": np.minimum(lengths, keys)}
    expected = linattn.noncausal(q, k, v, **given)
    for count in (1, 2, 3):
        threads(count)
        out = woven(np.full_like(q, np.nan))
        found = linattn.noncausal(*map(woven, (q, k, v)), out=out, **given)
        assert found is out
        assert_same(found, expected, f"{count} threads")


def assert_same_gradients(threads, name, operands, *rest):
    gufunc = getattr(ufuncs, name)
    expected = gufunc(*operands, *rest)
    for count in (1, 2, 3):
        threads(count)
        out = tuple(np.full_like(x, np.nan) for x in expected)
        out = tuple(woven(x) if x.ndim == 4 and x.shape[1] == H else x for x in out)
        assert_same(gufunc(*map(woven, operands), *rest, out=out), expected, f"{count} threads")


@pytest.mark.parametrize("suffix", ["", "_sum"])
@pytest.mark.parametrize("keys", [N, 5, 0])
def test_gradients_of_noncausal(threads, keys, suffix):
    """They pass over the keys, the queries, and the keys again."""
    rng = np.random.default_rng(1)
    draw = lambda n: rng.standard_normal((B, H, n, D), dtype="float32")  # noqa: E731
    operands = draw(N), draw(keys), draw(keys), draw(N)
    numbers = (1.0, 1e-6) if suffix == "" else (1.0,)
    assert_same_gradients(threads, f"noncausal_backward_elu{suffix}", operands, *numbers)


@pytest.mark.parametrize(("dtype", "n"), [("float32", N), ("float32", 1040), ("float16", 1250)])
@pytest.mark.parametrize("suffix", ["", "_sum"])
def test_gradients_of_causal(threads, dtype, n, suffix):
    """They pass over the tokens forwards, then in reverse, whose first chunk may be short; from and
    to states, and over tokens without a key, too."""
    rng = np.random.default_rng(2)
    operands = [rng.standard_normal((B, H, n, D), dtype="float32").astype(dtype) for _ in range(4)]
    numbers = (1.0, 1e-6) if suffix == "" else (1.0,)
    assert_same_gradients(threads, f"causal_backward_elu{suffix}", operands, *numbers)
    wide = np.result_type(dtype, "float32")
    s, z = (rng.standard_normal((B, H, 1, D, D)[: 5 - i]).astype(wide) for i in range(2))
    states = (s, abs(z), -s, z) if suffix == "" else (s, -s)
    for keys in (n, n - 300):
        whole = [0], [n], np.full((B, 1, 1), keys)
        rest = *numbers, *whole, *states
        assert_same_gradients(threads, f"causal_state_backward_elu{suffix}", operands, *rest)
