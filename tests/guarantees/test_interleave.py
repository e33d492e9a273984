"""Heads whose rows alternate in memory are interleaved, with the same bits."""

import numpy as np
import pytest
from slow import grid
from states import assert_same, flat
from table import ATTENTION

import linattn

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
def test_interleaving_changes_no_bit(threads, case, states):
    given = case.operands((B, H), N, d=D, m=D, dtype="float32")
    if "g" in given:
        given["g"][np.random.default_rng(7).random(given["g"].shape) < 0.002] = -300  # ends chunks
        given["g"][:, :, 100] = -np.inf
    views = {name: woven(x) for name, x in given.items()}
    expected = case.call(given, **STATES[states])
    for count in (1, 2, 3):
        threads(count)
        out = woven(np.full((B, H, N, D), np.nan, np.float32))
        found = case.call(views, out=out, **STATES[states])
        assert flat(found)[0] is out
        assert_same(found, expected, f"{count} threads")


@pytest.mark.parametrize(("dtype", "n", "d"), [("float16", 1250, 64), ("float64", N, 32)])
def test_interleaved_heads_of_other_dtypes(threads, dtype, n, d):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((B, H, n, d)).astype(dtype) for _ in range(3))
    gate = -rng.random((B, H, n)).astype(dtype)
    expected = linattn.gated(q, k, v, gate)
    threads(2)
    found = linattn.gated(*(woven(x) for x in (q, k, v, gate)))
    np.testing.assert_array_equal(found, expected)
