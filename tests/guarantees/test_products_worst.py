"""Errors of products of bfloat16 operands (`linattn.set_products`), searched for their worst case.

Let u be 2**-8, which a factor may be off by, relative to it.  A term of causal or gated attention
is off by u for each rounded factor (`FACTORS`).  Of a delta rule, the error of a token passes
on to later tokens like a change of its value: `rule_sizes` adds up what may be left of these.  For
gradients of delta rules, and where removal keys differ from keys, `RULES` is not derived: a search
found up to 18.  `LINATTN_TRIES` sets how many operands it tries.
"""

import numpy as np
import pytest
from bounds import links
from search import Arithmetic, Target, check, check_longer, linear, recurrence, search
from slow import grid, slow
from states import flat
from table import ATTENTION, GATES, first_of

import linattn

pytestmark = pytest.mark.unsanitized
ml_dtypes = pytest.importorskip("ml_dtypes")
BFLOATS = Arithmetic(np.dtype(ml_dtypes.bfloat16), "bfloat16", 2.0**-8)
#: Rounded factors of a term, for features that are not bfloat16 already.  A score, or the state,
#: and the two that it is made of; of gradients, these are keys, cotangents and queries.
FACTORS = {
    "causal": 3, "causal_backward": 4, "gated": 3, "gated_backward": 4,
    "ssd": 4, "ssd_backward": 5,  # values times strengths are not bfloat16
}  # fmt: skip
RULES = 32
SQUARES = 1.05  #: what products of roundings add to all this


def slack(d: int) -> float:
    """Sums in float32 as well, of which scores are one chain."""
    return 2 * (links(d) + d) * 2.0**-24 / BFLOATS.u


def rule_sizes(q, k, v, beta, g, scale=1.0):
    """What outputs of a delta rule may be off by, in u, for keys of norm 1 at most.

    ``(I - beta k k^T) exp(g)`` lengthens no column of the state, and so no error of it.  Each token
    adds that of what it reads, of two rounded factors, and of two that it writes.  It reads the
    state before its chunk, of at most 32 tokens, decayed since then.
    """
    n, (d, m) = len(q), (q.shape[-1], v.shape[-1])
    beta, g = (np.reshape(x, (n, -1)) for x in (beta, g))
    s, error, sizes = np.zeros((d, m)), np.zeros(m), np.empty((n, m))
    recent = np.zeros((32, d, m))
    for t in range(n):
        decay = np.exp(g[t])[:, None]
        s, recent, error = decay * s, decay * recent, decay.max() * error
        seen = np.maximum(recent.max(0), abs(s))
        u = beta[t] * (v[t] - k[t] @ s)
        error += np.linalg.norm(k[t]) * (2 * beta[t] * (abs(k[t]) @ seen) + 2 * abs(u))
        sizes[t] = np.linalg.norm(q[t]) * error + 2 * abs(q[t]) @ seen
        s += np.outer(k[t], u)
        recent[t % 32] = abs(s)
    return abs(scale) * sizes


def rules(n, d, gates, by_channel, seed=0):
    """Operands of the gated delta rule, by name."""
    rng = np.random.default_rng([seed, n, d])
    q, k, v = (rng.standard_normal((n, d)) for _ in range(3))
    k /= 1.01 * np.linalg.norm(k, axis=-1, keepdims=True)
    given = {"q": q, "k": k, "v": v, "beta": rng.uniform(0, 1, n)}
    given = {x: y.astype(BFLOATS.dtype) for x, y in given.items()}
    return given | {"g": GATES[gates](rng, (n, d) if by_channel else (n,)).astype("f4")}


def targets() -> dict[str, Target]:
    found = {}
    for name in ("causal", "causal_backward"):
        for d in (16, 64):
            plain = linear(name, d, BFLOATS, feature_map="identity", normalize=False)
            found[f"{name}, identity, d = {d}"] = plain._replace(bound=SQUARES + slack(d))
            mapped = linear(name, d, BFLOATS)
            found[f"{name}, elu, normalised, d = {d}"] = mapped._replace(
                bound=SQUARES * FACTORS[name] + 4 * slack(d)
            )
    for rule in ATTENTION:
        if linattn._linattn.operators[rule.name]["products"] and rule.name != "causal":
            for backward in (False, True) if "bonus" not in rule.letters else ():
                name = rule.name + "_backward" * backward
                factors = FACTORS.get(name, RULES)
                label = str(rule).replace("l2norm", "identity") + ", backward" * backward
                found[label] = recurrence(rule, 16, backward, BFLOATS)._replace(
                    bound=SQUARES * factors + slack(16)
                )
    return found


TARGETS = targets()
#: How products are summed; by AMX in the slow tests.
SUMS = pytest.mark.parametrize("sums", [0, *slow(2)], ids=["pairs", "AMX"], indirect=True)


@SUMS
@pytest.mark.parametrize("name", TARGETS)
def test_bounds_hold(sums, name, record_property):
    check(TARGETS[name], record_property, 300, 4)


@pytest.mark.slow
@SUMS
@pytest.mark.parametrize("name", TARGETS)
def test_bounds_hold_for_what_a_search_finds(sums, name, record_property):
    check_longer(TARGETS[name], record_property)


@pytest.mark.parametrize("name", [x for x in TARGETS if x.startswith("causal") and "16" in x])
def test_bounds_are_close(name):
    """Two fifths of them would not do."""
    most, _ = search(TARGETS[name], 300, 30, seed=300)
    assert most > 0.4


@SUMS
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("gates", [None, "weak", "strong", "resets"])
def test_rules_within_what_is_derived(sums, gates, by_channel):
    """Random, nearly equal and repeated keys; with no gates, `delta`."""
    for case in ("drawn", "near", "few"):
        given = rules(600, 16, gates or "weak", by_channel)
        if case == "near":
            k = given["k"].astype("f8")
            given["k"] = ((k + 8 * k[0]) / 9.2).astype(BFLOATS.dtype)
        elif case == "few":
            given["k"] = given["k"][np.arange(600) % 5]
        if gates is None:
            del given["g"]
        operator = linattn.delta if gates is None else linattn.gated_delta
        wide = {x: y.astype("f8") for x, y in given.items()}
        (o,) = BFLOATS.call(operator, **given)
        exact = operator(**wide)
        allowed = SQUARES * rule_sizes(**{"g": np.zeros(600)} | wide) + slack(16) * abs(exact).max()
        assert BFLOATS.ratios([o], [exact], [allowed]) <= 1


LONG = [
    x for x in ATTENTION
    if x.name in ("gated", "ssd", "gated_delta", "dplr") and "bonus" not in x.letters
]  # fmt: skip


@SUMS
@grid(
    lambda rule, gates: gates == "strong" or rule in first_of(LONG),
    rule=LONG,
    gates=["weak", "strong", "resets"],
)
def test_long_sequences_with_strong_gates(sums, rule, gates):
    """Forward and gradients, of 8192 tokens: errors do not grow with the sequence."""
    given = rule.operands(n=8192, d=16, m=16, dtype="float32", gates=gates)
    given = {x: y if x == "g" else y.astype(BFLOATS.dtype) for x, y in given.items()}
    wide = {x: y.astype("f8") for x, y in given.items()}
    for call in (rule.forward, rule.backward):
        results, exact = BFLOATS.call(call, given), flat(call(wide, linattn))
        sizes = [np.full(np.shape(x), max(abs(y).max() for y in exact)) for x in exact]
        assert BFLOATS.ratios(results, exact, sizes) <= 2
