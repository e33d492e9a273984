"""Heads whose rows alternate in memory are interleaved, with the same bits."""

import numpy as np
import pytest
from slow import grid

import linattn

#: So far apart that their rows leave the caches, not whole chunks, heads that do not part evenly.
B, H, N, D = 2, 7, 611, 64
PLAIN = {"feature_map": "identity"}


def operands(dtype="float32"):
    rng = np.random.default_rng(7)
    q, k, v, a, b = (0.3 * rng.standard_normal((B, H, N, D)) for _ in range(5))
    gates = -rng.exponential(0.1, (B, H, N, D))
    gates[rng.random(gates.shape) < 0.002] = -300  # ends chunks of a head early
    gates[..., 100, :] = -np.inf
    gate, beta = gates[..., 0].copy(), rng.random((B, H, N))
    named = {"q": q, "k": k, "v": v, "a": 0.1 * a, "b": b, "gate": gate, "gates": gates}
    return {name: x.astype(dtype) for name, x in {**named, "beta": beta}.items()}


def woven(x):
    """Tokens first, then heads, in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 2)), 2, 1)


CALLS = {
    "causal": (linattn.causal, "qkv", {}),
    "causal unnormalised": (linattn.causal, "qkv", {"normalize": False, **PLAIN}),
    "causal scaled": (linattn.causal, "qkv", {"scale": 0.5, "feature_map": "relu"}),
    "delta": (linattn.delta, ("q", "k", "v", "beta"), {"feature_map": "l2norm"}),
    "gated": (linattn.gated, ("q", "k", "v", "gate"), {}),
    "gated by channel": (linattn.gated, ("q", "k", "v", "gates"), {}),
    "gated bonus": (linattn.gated, ("q", "k", "v", "gates"), {"bonus": np.ones(D, np.float32)}),
    "gated_delta": (
        linattn.gated_delta, ("q", "k", "v", "gate", "beta"), {"feature_map": "l2norm"},
    ),
    "gated_delta by channel": (
        linattn.gated_delta, ("q", "k", "v", "gates", "beta"), {"feature_map": "l2norm"},
    ),
    "dplr": (linattn.dplr, ("q", "k", "v", "a", "b", "gates"), {}),
}  # fmt: skip
STATES = {
    "alone": {},
    "final": {"return_state": True},
    "one sequence": {"cu_seqlens": [0, N], "return_state": True},
    "lengths": {"key_lengths": np.array([[0], [300]]), "return_state": True},
}


@grid(lambda name, states: states == "final" or name == "causal", name=CALLS, states=STATES)
def test_interleaving_changes_no_bit(threads, name, states):
    function, names, options = CALLS[name]
    given = operands()
    packed = [given[x] for x in names]
    views = [woven(x) for x in packed]
    options = {**options, **STATES[states]}
    with np.errstate(all="ignore"):
        expected = flat(function(*packed, **options))
        for count in (1, 2, 3):
            threads(count)
            out = woven(np.full((B, H, N, D), np.nan, np.float32))
            found = flat(function(*views, out=out, **options))
            assert found[0] is out
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"{count} threads")


@pytest.mark.parametrize(("dtype", "n", "d"), [("float16", 1250, 64), ("float64", N, 32)])
def test_interleaved_heads_of_other_dtypes(threads, dtype, n, d):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((B, H, n, d)).astype(dtype) for _ in range(3))
    gate = -rng.random((B, H, n)).astype(dtype)
    expected = linattn.gated(q, k, v, gate)
    threads(2)
    found = linattn.gated(*(woven(x) for x in (q, k, v, gate)))
    np.testing.assert_array_equal(found, expected)


def flat(result):
    if not isinstance(result, tuple):
        return [result]
    return [result[0], *(x for x in result[1] if x is not None)]
