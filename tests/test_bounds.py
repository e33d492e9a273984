"""The tests themselves: the bound lets honest rounding pass and catches a wrong formula."""

import numpy as np
import pytest
from bounds import compare, evaluate
from cases import BACKWARD, FORWARD, VARIANTS, Case, call, make

from linattn import _reference as ref
from linattn import _reference_maps as maps

SIZES = [(1, 1, 1), (2, 3, 4), (33, 17, 5), (100, 8, 16)]


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
def test_plain_arithmetic_passes(operator):
    for feature_map, normalize, dtype in VARIANTS:
        for n, d, m in SIZES:
            case = Case(
                operator, n, d, m, feature_map=feature_map, normalize=normalize, dtype=dtype
            )
            operands = make(case)
            result = evaluate(case, operands, np.dtype(dtype).type)
            compare(case, operands, result if case.backward else result[0])


def _shifted(x, by):
    """Rows moved down by `by`: an off-by-one in the recurrence."""
    y = np.zeros_like(x)
    y[..., by:, :] = x[..., : x.shape[-2] - by, :]
    return y


def _last_key_dropped(f):
    def wrong(q, k, v, *g, **options):
        return f(q, k, v, *g, **options, key_lengths=k.shape[-2] - 1)

    return wrong


def _with(f, **wrong):
    return lambda *operands, **options: f(*operands, **{**options, **wrong})


def _without_gradient_of_denominator(backward):
    def wrong(q, k, v, g, *, normalize, eps, **options):
        forward = getattr(ref, backward.__name__.removesuffix("_backward"))
        ones = np.ones((*v.shape[:-1], 1), v.dtype)
        den = forward(q, k, ones, normalize=False, **options) + eps
        return backward(q, k, v, g / den, normalize=False, eps=eps, **options)

    return wrong


def _slightly(f, relative):
    def wrong(*operands, **options):
        result = f(*operands, **options)
        if isinstance(result, tuple):
            return tuple(x * (1 + relative) for x in result)
        return result * (1 + relative)

    return wrong


def _reads_before_it_writes(q, k, v, **options):
    return ref.causal(q, _shifted(k, 1), _shifted(v, 1), **options)


MUTANTS = {
    "eps forgotten": (_with(ref.causal, eps=0.0), "causal"),
    "eps forgotten in the gradient": (_with(ref.causal_backward, eps=0.0), "causal_backward"),
    "scale forgotten in the denominator": (_with(ref.causal, scale=1.0), "causal"),
    "denominator forgotten": (_with(ref.noncausal, normalize=False), "noncausal"),
    "denominator has no gradient": (
        _without_gradient_of_denominator(ref.causal_backward),
        "causal_backward",
    ),
    "nor in the non-causal form": (
        _without_gradient_of_denominator(ref.noncausal_backward),
        "noncausal_backward",
    ),
    "wrong map": (_with(ref.causal, feature_map="softplus"), "causal"),
    "last key dropped": (_last_key_dropped(ref.noncausal), "noncausal"),
    "last key dropped in the gradient": (
        _last_key_dropped(ref.causal_backward),
        "causal_backward",
    ),
    "reads before it writes": (_reads_before_it_writes, "causal"),
    "rounded too often": (_slightly(ref.causal, 40 * 2**-24), "causal"),
    "gradient rounded too often": (_slightly(ref.causal_backward, 150 * 2**-24), "causal_backward"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_formula_fails(name):
    mutant, operator = MUTANTS[name]
    case = Case(operator, 20, 4, 3, eps=0.01, scale=0.5)
    operands = make(case)
    right = call(ref, case, operands)
    if case.backward:
        compare(case, operands, tuple(x.astype("f4") for x in right))
    else:
        compare(case, operands, right.astype("f4"))
    wrong = mutant(*operands, **case.options)
    wrong = tuple(x.astype("f4") for x in wrong) if case.backward else wrong.astype("f4")
    with pytest.raises(AssertionError, match="is off by"):
        compare(case, operands, wrong)


def test_magnitude_is_the_definition():
    case = Case("causal", 6, 3, 2, feature_map="identity", normalize=False, dtype="float64")
    q, k, v = make(case)
    (size,) = evaluate(case, [q, k, v], np.float64, magnitude=True)
    weights = np.tril(abs(maps.get("identity")(q)) @ abs(k).T)
    np.testing.assert_allclose(size, weights @ abs(v), rtol=1e-14)
