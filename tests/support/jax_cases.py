"""The calls that the tests of linattn.jax make, and their operands."""

import jax
import numpy as np
import pytest
from bounds import close
from operands import dims, given, make
from slow import first_of_each

import linattn
from linattn import State


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


N, D, M = 8, 4, 5


def call(name, more="", **options):
    """The name, operands and options of a call; `more` is that of `operands.dims`."""
    sizes, rng = {"n": N, "s": N, "d": D, "m": M}, np.random.default_rng(0)
    arrays = make(dims(name, more), sizes, rng, lead=(2, 3), leads={"bonus": (3,)})
    operands, named = given(name, arrays)
    return name, operands, named | options


_, (Q, K, V, G, BETA), _ = call("gated_delta")
TURNS, GATES = 0.9 * np.exp(1j * V), (2 * draw(2, 3, N), 2 * draw(2, 3, N, seed=1))
LENGTHS = np.array([[8, 0, 3], [5, 8, 1]])
PHI = linattn.feature_maps.RandomFourierFeatures.sample(D, 6, rng=0)
CASES = [
    ("causal", (Q, K, V), {}),
    ("causal", (Q, K[:, :1], V[0]), {"scale": 0.5, "eps": 0.1}),
    ("causal", (Q, K, V), {"feature_map": "dpfp", "normalize": False}),
    ("causal", (Q, K, V), {"feature_map": PHI, "normalize": False}),
    ("causal", (Q, K, V), {"key_lengths": LENGTHS}),
    ("causal", (Q, K, V), {"cu_seqlens": np.array([0, 3, 3, 8])}),
    ("noncausal", (Q, K, V), {}),
    ("noncausal", (Q[..., :5, :], K, V), {"key_lengths": LENGTHS, "feature_map": "softplus"}),
    call("delta", feature_map="l2norm"),
    call("delta", "beta", feature_map="l2norm"),
    call("gated"),
    call("gated", "g bonus"),
    call("gated_delta", feature_map="l2norm"),
    call("gated_delta", "g beta erase", scale=0.5),
    call("dplr", "g"),
    call("momentum_delta", scale=0.5),
    call("momentum_delta", key_lengths=LENGTHS),
    call("linear_scan", reverse=True),
    call("linear_scan", log=False, cu_seqlens=np.array([0, 3, 3, 8])),
    call("selective_scan"),
    call("selective_scan", "D z dt_bias", softplus=True, key_lengths=LENGTHS),
    ("linear_scan", (TURNS, V), {}),
    ("linear_scan", (TURNS[..., :1], V * 1j), {"log": True, "reverse": True}),
    ("mlstm", (Q, K, V, *GATES), {}),
    ("mlstm", (Q, K[:, :1], V[0], *GATES), {"eps": 0.1, "key_lengths": LENGTHS}),
    ("wkv", (2 * V, V, abs(V[0, 0, 0]), V[0, 0, 1]), {}),
    ("wkv", (2 * V, V[0], abs(V[0, 0, 0]), V[0, 0, 1]), {"key_lengths": LENGTHS}),
    ("softmax_attention", (Q, K, V), {"causal": True}),
    ("softmax_attention", (Q[..., :5, :], K[0], V), {"scale": 0.3}),
    ("linformer", (Q, K, V, draw(N, 3), draw(3, N, 3)), {}),
    ("log_decay", (G, draw(3, 1), draw(3, 1, seed=1)), {}),
    ("log_decay", (G, draw(3, 1), draw(3, 1, seed=1)), {"lower_bound": -5.0}),
    ("causal_conv1d", (Q, draw(D, 3), draw(D)), {"activation": "silu"}),
    ("causal_conv1d", (Q, draw(D, 3)), {"cu_seqlens": np.array([0, 3, 3, 8])}),
]
IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]
EACH = pytest.mark.parametrize(("name", "operands", "options"), CASES, ids=IDS)


def _lengths(case):
    """A kind for lengths of each function, and for what `test_every_case` has not."""
    own = {"key_lengths", "cu_seqlens"} & {*case[2]}
    return (case[0], *own) if own or case[0] == "log_decay" else None


def _recurrence(case):
    kinds = "gated_delta", "selective_scan", "mlstm", "softmax_attention"
    return case[0] in kinds and case[0]


EACH_LENGTH, EACH_KIND = (
    pytest.mark.parametrize(("name", "operands", "options"), first_of_each(CASES, IDS, kind=kind))
    for kind in (_lengths, _recurrence)
)
ATTENTION = [
    case
    for case in CASES
    if case[0] in ("causal", "delta", "gated", "gated_delta", "dplr")
    and not {"key_lengths", "cu_seqlens"} & set(case[2])
    and not any(x.shape[2:] == (N, M) for x in case[1][3:])
    and all(x.shape[:2] == (2, 3) for x in case[1])
]
_, (FACTORS, SCANNED), _ = call("linear_scan")
SHARDED = [
    *ATTENTION,
    call("momentum_delta"),
    call("linear_scan"),
    ("linear_scan", (-FACTORS, SCANNED), {"log": True}),
    ("linear_scan", (FACTORS[0, 0, 0], SCANNED), {}),
    call("linear_scan", reverse=True),
    call("selective_scan"),
    call("selective_scan", "D z dt_bias", softplus=True),
]
#: A function, its operands, those of its first token, options, and a state.
W, U = abs(draw(M)), draw(M, seed=1)
MEMORY = State(draw(2, 3, D, M), draw(2, 3, D), 2 * draw(2, 3))
MEAN = State(draw(2, 3, M), abs(draw(2, 3, M)), 2 * draw(2, 3, M, seed=1))
ROW = State(draw(2, 3, M) + 1j * draw(2, 3, M, seed=1))
SCALED = [
    ("mlstm", (Q, K, V, *GATES), {}, MEMORY),
    ("mlstm", (Q, K, V, *GATES), {"eps": 0.1}, MEMORY),
    ("mlstm", (Q, K, V, *GATES), {"normalize": False, "scale": 0.5}, MEMORY._replace(z=None)),
    ("wkv", (2 * V, V, W, U), {}, MEAN),
    ("linear_scan", (TURNS, V), {}, ROW),
    ("linear_scan", (TURNS.real, V * 1j), {"log": True}, ROW),
    ("linear_scan", (TURNS, V), {"reverse": True}, ROW),
]


def compare(actual, expected, tolerance=1e-13):
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        close(np.asarray(x), np.asarray(y), atol=tolerance * max(abs(np.asarray(y)).max(), 1e-3))


X = np.ones((2, 4, 3))
