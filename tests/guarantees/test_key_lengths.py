"""Padding: keys and values at and past a length do not exist, whatever they hold."""

import numpy as np
import pytest
from bounds import close, excess
from cases import MAPS, SIGNED, VARIANTS
from slow import looped
from states import assert_same, bound, check, flat, tokens

import linattn
from linattn._core import settings
from linattn.reference import linear as ref

NAMES = ["causal", "noncausal", "causal_backward", "noncausal_backward"]
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 39, 40]


def operands_for(name, shape, **options):
    return tokens(shape, cotangent=name.endswith("backward"), **options)


@looped(name=NAMES)
@pytest.mark.parametrize(("feature_map", "normalize", "dtype"), VARIANTS)
def test_against_the_twin(name, feature_map, normalize, dtype):
    options = {"feature_map": feature_map, "normalize": normalize, "eps": 0.01, "scale": 0.4}
    positive = feature_map in SIGNED
    for d, m in [(5, 9), (16, 33)]:
        operands = operands_for(name, (len(LENGTHS), 40, d, m), dtype=dtype, positive=positive)
        check(name, operands, key_lengths=np.array(LENGTHS), **options)


@pytest.mark.parametrize("name", NAMES)
def test_equals_fewer_keys(name):
    """To the bit: a call whose k and v end there (queries past the end see all of them)."""
    operands = operands_for(name, (40, 16, 33))
    for length in LENGTHS:
        result = flat(getattr(linattn, name)(*operands, key_lengths=length))
        short = [x[:length] if i in (1, 2) or name.startswith("causal") else x
                 for i, x in enumerate(operands)]  # fmt: skip
        expected = flat(getattr(linattn, name)(*short))
        if name == "causal":
            assert_same(result[0][:length], expected[0])
        elif name == "noncausal":
            assert_same(result, expected)
        elif name == "noncausal_backward":
            assert_same([result[0], result[1][:length], result[2][:length]], expected)


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("name", NAMES)
def test_no_key_at_all_without_eps(name, feature_map, isa):
    """0 / 0 is 0 for a query that sees no key, but its NaN stays one; other heads are as ever."""
    f, options = getattr(linattn, name), {"feature_map": feature_map, "eps": 0.0}
    for chosen in settings.available_isas():
        isa(chosen)
        operands = operands_for(name, (3, 40, 6, 19))
        results = flat(f(*operands, key_lengths=[0, 5, 0], **options))
        expected = flat(f(*(x[1] for x in operands), key_lengths=5, **options))
        assert_same([x[1] for x in results], expected)
        for x in results:
            assert not x[::2].any()
        operands[0][0, 20, 2] = np.nan
        x = flat(f(*operands, key_lengths=[0, 5, 0], **options))[0]
        assert np.isnan(x[0, 20]).any()
        assert not x[0, :20].any() and not x[0, 21:].any()


def test_no_key_but_a_state():
    """A state without keys is none; one with a sum of 0 and a value is divided as IEEE says."""
    operands = operands_for("causal", (3, 4, 6, 19), positive=True)
    start = linattn.State(np.zeros((3, 6, 19), "f4"), np.zeros((3, 6), "f4"))
    start.s[1:] = 2
    start.z[2] = 4
    o = linattn.causal(*operands, key_lengths=0, eps=0.0, initial_state=start)
    for x, expected in zip(o, (0, np.inf, 0.5), strict=True):
        close(x, np.full((4, 19), expected), atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_broadcasting(name):
    lead, n = (2, 3), 21
    operands = operands_for(name, (*lead, n, 6, 19))
    f = getattr(linattn, name)
    rng = np.random.default_rng(2)
    for own in [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (1, 1)]:
        lengths = rng.integers(0, n + 1, own)
        dense = np.broadcast_to(lengths, lead).copy()
        expected = f(*operands, key_lengths=dense)
        for dtype in ("i4", "u1", "u8", ">i8"):
            assert_same(f(*operands, key_lengths=np.asarray(lengths, dtype)), expected)
        assert_same(f(*operands, key_lengths=lengths.tolist()), expected)
        assert_same(f(*operands, key_lengths=dense[::-1][::-1]), expected)


@pytest.mark.parametrize("name", ["causal_backward", "noncausal_backward"])
def test_gradients_of_shared_keys(name):
    """One key head with a length for each of the query heads."""
    q, k, v, g = operands_for(name, (4, 21, 6, 19))
    k, v = k[:1], v[:1]
    lengths = np.array([0, 3, 17, 21])
    f = getattr(linattn, name)
    result = f(q, k, v, g, key_lengths=lengths)
    dense = [np.broadcast_to(x, (4, *x.shape[1:])).copy() for x in (q, k, v, g)]
    slack = bound(name, dense, key_lengths=lengths)
    expected = getattr(ref, name)(*dense, key_lengths=lengths)
    for x, y, allowed, own in zip(result, expected, slack, (q, k, v), strict=True):
        assert x.shape == own.shape
        assert excess(x, ref._sum_to(y, own), ref._sum_to(allowed, own)) <= 1


def test_cross_attention():
    rng = np.random.default_rng(5)
    for n, s in [(1, 40), (40, 1), (7, 70), (65, 33), (3, 0)]:
        q, g = rng.standard_normal((2, 3, n, 5)).astype("f4")
        k, v = rng.standard_normal((2, 3, s, 5)).astype("f4")
        for lengths in (0, s // 2, s, [0, s // 2, s]):
            check("noncausal", [q, k, v], key_lengths=np.array(lengths))
            check("noncausal_backward", [q, k, v, g], key_lengths=np.array(lengths))


def test_gufuncs_bring_lengths_into_range():
    """Whatever the number: nothing outside the arrays is read or written."""
    wild = np.array([-(2**63), -1, 0, 7, 21, 22, 2**40, 2**63 - 1])
    tame = np.clip(wild, 0, 21)
    for name in NAMES:
        operands = operands_for(name, (8, 21, 6, 19))
        expected = flat(getattr(linattn, name)(*operands, key_lengths=tame))
        for feature_map in MAPS[2:3]:
            if name.startswith("noncausal"):
                f = getattr(
                    linattn.ufuncs, f"{name.replace('noncausal', 'noncausal_keys')}_{feature_map}"
                )
                assert_same(f(*operands, 1.0, 1e-6, wild), expected)
            else:
                s, z = np.zeros((1, 6, 19), "f4"), np.zeros((1, 6), "f4")
                f = getattr(
                    linattn.ufuncs, f"{name.replace('causal', 'causal_state')}_{feature_map}"
                )
                states = (s, z, s, z) if name.endswith("backward") else (s, z)
                result = f(*operands, 1.0, 1e-6, [0], [21], wild[:, None], *states)
                assert_same(flat(result)[: len(expected)], expected)
