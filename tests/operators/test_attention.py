"""What causal and noncausal do alone: defaults, equal terms, kinks."""

from itertools import product

import numpy as np
import pytest
from bounds import close, excess
from cases import Case, make
from slow import slow

import linattn
from linattn.reference import linear as ref


def test_defaults():
    q, k, v = make(Case("causal", 12, 4, 5, dtype="float64"))
    for f, g in [(linattn.causal, ref.causal), (linattn.noncausal, ref.noncausal)]:
        expected = g(q, k, v, feature_map="elu", normalize=True, eps=1e-6, scale=1.0)
        close(f(q, k, v), expected, atol=0, rtol=1e-13)


@pytest.mark.unsanitized
@pytest.mark.parametrize("f", [64, *slow(256), 1024])
@pytest.mark.parametrize("n", [16, *slow(65, 272), 1024, *slow(2048)])
def test_equal_terms_do_not_round_one_way_for_long(n, f):
    """Sums of equal numbers, the worst there is for them, at lengths about the chunks'."""
    for x in [*np.random.default_rng(0).uniform(0.1, 1, 8), 0.0037, 0.1, 0.3, 1 / 3]:
        for operator, normalize in product((linattn.causal, linattn.noncausal), (True, False)):
            operands = [np.full((n, width), x, "f4") for width in (f, f, 16)]
            options = {"feature_map": "identity", "normalize": normalize, "eps": 0.0}
            o = operator(*operands, **options)
            want = operator(*(y.astype("f8") for y in operands), **options)
            assert np.abs(o / want - 1).max() <= (48 + f / 16) * np.finfo("f4").eps / 2


def test_constant_input_is_exact():
    """The mean of equal values is that value: rounding must not drift with the position."""
    ones = np.ones((300, 8), "f4")
    o = linattn.causal(ones, ones, 3 * ones, eps=0.0)
    assert excess(o, 3.0, 2 * np.finfo("f4").eps * 3) <= 1


def test_derivative_at_the_kink():
    """relu' (0) = 0 exactly, of either sign of zero; elu' (0) = 1."""
    zero = np.array([[0.0, -0.0]])
    one = np.ones((1, 2))
    g = np.ones((1, 1))
    options = {"normalize": False}
    for f in (linattn.causal_backward, linattn.noncausal_backward):
        dq, dk, _ = f(zero, one, g, g, feature_map="relu", **options)
        assert not dq.any()
        _, dk, _ = f(one, zero, g, g, feature_map="relu", **options)
        assert not dk.any()
        dq, dk, _ = f(zero, zero, g, g, feature_map="elu", **options)
        np.testing.assert_array_equal(dq, one)
        np.testing.assert_array_equal(dk, one)
