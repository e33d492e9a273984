"""The calls that dask and MPI split into blocks of tokens."""

import numpy as np
from operands import dims, given, make

from linattn import State
from linattn.operators.registry import RECURRENCES

B, H, N, D, M, F = 2, 3, 20, 4, 5, 6
LENGTHS = np.array([[3, 20, 0], [9, 14, 8]])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def call(name, more="", **options):
    """The name, operands and options of a call; `more` is that of `operands.dims`."""
    sizes, rng = {"n": N, "s": N, "d": D, "m": M, "f": F}, np.random.default_rng(0)
    leads = {"bonus": ()}
    arrays = make(dims(name, more), sizes, rng, lead=(B, H), leads=leads)
    operands, named = given(name, arrays)
    return name, operands, named | options


_, (Q, K, V, G, BETA), _ = call("gated_delta")
_, (*_, GATES, _), _named = call("gated_delta", "g erase")
_, (SCANNED, X), _ = call("linear_scan")
A, BONUS, C = _named["erase"], draw(D, seed=6), draw(B, H, N, M)
Y, W = draw(B, H, N, M, seed=9), draw(M, seed=10)
IN, FORGET = 3 * draw(B, H, N, seed=11), 3 * draw(B, H, N, seed=12)
ROTATIONS = 0.9 * np.exp(1j * Y)
#: The function, its operands, its options, and the fields of its states.
CASES = [
    ("causal", (Q, K, V), {}, "sz"),
    ("causal", (Q, K, V), {"normalize": False, "feature_map": "dpfp"}, ""),
    ("causal", (Q, K[0], V), {"normalize": False, "scale": 0.5}, "s"),
    ("causal", (Q, K, V), {"key_lengths": LENGTHS}, "sz"),
    ("causal", (Q, K[:, :1], V[:1]), {}, "sz"),
    ("causal", (Q, K[0], V), {"scale": 0.5, "eps": 0.1}, "sz"),
    ("noncausal", (Q, K, V), {}, ""),
    ("noncausal", (Q, K, V), {"key_lengths": LENGTHS, "feature_map": "dpfp"}, ""),
    ("noncausal", (Q[..., :5, :], K[:1], V), {"normalize": False, "scale": 0.5}, ""),
    (*call("delta", feature_map="l2norm"), "s"),
    (*call("gated"), "s"),
    (*call("gated", "g bonus"), "s"),
    (*call("gated", key_lengths=LENGTHS), "s"),
    (*call("gated_delta", feature_map="l2norm"), "s"),
    (*call("gated_delta", "g erase", scale=0.5), "s"),
    (*call("dplr", "g"), "s"),
    (*call("momentum_delta", scale=0.5), "sz"),
    (*call("momentum_delta", key_lengths=LENGTHS), "sz"),
    (*call("linear_scan"), "s"),
    ("linear_scan", (-abs(SCANNED), X), {"log": True}, "s"),
    (*call("linear_scan", reverse=True), "s"),
    ("linear_scan", (ROTATIONS, X + 1j * Y), {}, "complex"),
    ("linear_scan", (ROTATIONS, X), {"log": True, "reverse": True}, "complex"),
    (*call("selective_scan"), "s"),
    (*call("selective_scan", "D z dt_bias", softplus=True, key_lengths=LENGTHS), "s"),
    ("mlstm", (Q, K, V, IN, FORGET), {}, "sz"),
    ("mlstm", (Q, K[:, :1], V, IN, FORGET), {"eps": 0.1, "key_lengths": LENGTHS}, "sz"),
    ("mlstm", (Q, K, V, IN, FORGET), {"normalize": False, "scale": 0.5}, "s"),
    ("wkv", (3 * X, V, abs(W), W), {}, "sz"),
    ("wkv", (3 * X, V, abs(W), W), {"key_lengths": LENGTHS}, "sz"),
]


def states(fields, name="causal"):
    """A state of a recurrence."""
    sizes = {"d": D, "m": M, "f": F}
    core = [sizes[x] for x in RECURRENCES[name].layout.state]
    s = draw(B, H, *core, seed=7)
    if fields == "complex":
        return State(s + 1j * draw(*s.shape, seed=8))
    z = abs(draw(B, H, core[0], seed=8)) if fields == "sz" else None
    if RECURRENCES[name].stacked:
        z = draw(*s.shape, seed=8)
    if name in ("mlstm", "wkv"):
        return State(s, z, draw(B, H, *(core if name == "wkv" else ()), seed=9))
    return State(s, z)


def grad_out(fields, tokens=N):
    """The gradient of the output."""
    grad = C[..., :tokens, :]
    return grad + 1j * Y[..., :tokens, :] if fields == "complex" else grad
