"""The calls that dask and MPI split into blocks of tokens."""

import numpy as np

from linattn import State

B, H, N, D, M = 2, 3, 20, 4, 5
LENGTHS = np.array([[3, 20, 0], [9, 14, 8]])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


Q, K, V, C = draw(B, H, N, D), draw(B, H, N, D, seed=1), draw(B, H, N, M, seed=2), draw(B, H, N, M)
G, GATES = -abs(draw(B, H, N, seed=3)), -abs(draw(B, H, N, D, seed=4))
BETA, A, BONUS = 1 / (1 + np.exp(G)), draw(B, H, N, D, seed=5) / 5, draw(D, seed=6)
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
    ("delta", (Q, K, V, BETA), {"feature_map": "l2norm"}, "s"),
    ("gated", (Q, K, V, G), {}, "s"),
    ("gated", (Q, K, V, GATES), {"bonus": BONUS}, "s"),
    ("gated", (Q, K, V, G), {"key_lengths": LENGTHS}, "s"),
    ("gated_delta", (Q, K, V, G, BETA), {"feature_map": "l2norm"}, "s"),
    ("gated_delta", (Q, K, V, GATES, BETA), {"erase": A, "scale": 0.5}, "s"),
    ("dplr", (Q, K, V, A, A, GATES), {}, "s"),
]


def states(fields):
    s, z = draw(B, H, D, M, seed=7), abs(draw(B, H, D, seed=8))
    return State(s, z if fields == "sz" else None)
