"""The error bounds themselves: rounding passes, and a wrong formula fails."""

import numpy as np
import pytest
from bounds import close, compare, evaluate, oracle, twin_of
from cases import BACKWARD, FORWARD, VARIANTS, Case, delta_case, make

from linattn import feature_maps
from linattn.reference import delta_rule as ref_delta
from linattn.reference import linear as ref
from linattn.reference import maps
from linattn.reference import softmax as ref_softmax

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


def _adds(q, k, v, beta, *, feature_map, scale):
    """Writes without reading first what the memory holds."""
    return ref.causal(q, k, v * beta[..., None], feature_map=feature_map, scale=scale,
                      normalize=False)  # fmt: skip


def _delta_reads_before_it_writes(q, k, v, beta, **options):
    return ref_delta.delta(q, _shifted(k, 1), _shifted(v, 1), beta, **options)


def _next_beta(f):
    return lambda q, k, v, beta, *g, **options: f(q, k, v, np.roll(beta, -1), *g, **options)


def _one_gradient_lost(f, which):
    def wrong(*operands, **options):
        grads = list(f(*operands, **options))
        grads[which] = 0 * grads[which]
        return tuple(grads)

    return wrong


def _one_key_too_few(f):
    def wrong(q, k, v, *g, **options):
        return f(q, k[:-1], v[:-1], *g, **options)

    return wrong


def _sum_of_weights_has_no_gradient(q, k, v, g, *, causal, scale):
    p = ref_softmax._weights(q, k, causal, scale)
    e = scale * p * (g @ v.T)
    return e @ k, e.T @ q, p.T @ g


class _SumHasNoGradient(maps.DPFP):
    def backward(self, x, grad):
        total = self._products(x).sum(-1, keepdims=True) + self.eps
        return maps.DPFP(self.nu, normalize=False).backward(x, grad / total)


def _linear(operator, **options):
    return Case(operator, 20, 4, 3, eps=0.01, scale=0.5, **options)


def _dpfp(operator):
    return _linear(operator, feature_map=DPFP, normalize=False)


DPFP = feature_maps.DPFP(nu=2)
RANDOM = feature_maps.PositiveRandomFeatures.sample(4, 9)
DELTA_BACKWARD = delta_case(20, 4, 3, feature_map="elu")
DELTA = DELTA_BACKWARD._replace(operator="delta")
SOFTMAX = Case("softmax_attention", 20, 4, 3, scale=0.5, masked=True)
SOFTMAX_BACKWARD = SOFTMAX._replace(operator="softmax_attention_backward")
U = 2.0**-24

# What is wrong: the wrong function, and the case that must show it.
MUTANTS = {
    "eps forgotten": (_with(ref.causal, eps=0.0), _linear("causal")),
    "eps forgotten in the gradient": (
        _with(ref.causal_backward, eps=0.0),
        _linear("causal_backward"),
    ),
    "scale forgotten in the denominator": (_with(ref.causal, scale=1.0), _linear("causal")),
    "denominator forgotten": (_with(ref.noncausal, normalize=False), _linear("noncausal")),
    "denominator has no gradient": (
        _without_gradient_of_denominator(ref.causal_backward),
        _linear("causal_backward"),
    ),
    "nor in the non-causal form": (
        _without_gradient_of_denominator(ref.noncausal_backward),
        _linear("noncausal_backward"),
    ),
    "wrong map": (_with(ref.causal, feature_map="softplus"), _linear("causal")),
    "last key dropped": (_last_key_dropped(ref.noncausal), _linear("noncausal")),
    "last key dropped in the gradient": (
        _last_key_dropped(ref.causal_backward),
        _linear("causal_backward"),
    ),
    "reads before it writes": (_reads_before_it_writes, _linear("causal")),
    "rounded too often": (_slightly(ref.causal, 40 * U), _linear("causal")),
    "gradient rounded too often": (
        _slightly(ref.causal_backward, 150 * U),
        _linear("causal_backward"),
    ),
    "DPFP of another nu": (_with(ref.causal, feature_map=maps.DPFP(nu=1)), _dpfp("causal")),
    "DPFP not divided by its sum": (
        _with(ref.noncausal, feature_map=maps.DPFP(nu=2, normalize=False)),
        _dpfp("noncausal"),
    ),
    "DPFP without eps": (_with(ref.causal, feature_map=maps.DPFP(nu=2, eps=0.0)), _dpfp("causal")),
    "DPFP's sum has no gradient": (
        _with(ref.causal_backward, feature_map=_SumHasNoGradient(nu=2)),
        _dpfp("causal_backward"),
    ),
    "DPFP rounded too often": (_slightly(ref.causal, 150 * U), _dpfp("causal")),
    "random features without the norm of x": (
        _with(ref.causal, feature_map=maps.Generalized(RANDOM.omega, "exp", RANDOM.temperature)),
        _linear("causal", feature_map=RANDOM),
    ),
    "delta adds": (_adds, DELTA),
    "delta reads before it writes": (_delta_reads_before_it_writes, DELTA),
    "delta takes the next beta": (_next_beta(ref_delta.delta), DELTA),
    "delta's scale forgotten": (_with(ref_delta.delta, scale=1.0), DELTA),
    "delta rounded too often": (_slightly(ref_delta.delta, 40 * U), DELTA),
    "softmax forgets the mask": (_with(ref_softmax.softmax_attention, causal=False), SOFTMAX),
    "softmax forgets the scale": (_with(ref_softmax.softmax_attention, scale=1.0), SOFTMAX),
    "softmax drops the last key": (
        _one_key_too_few(ref_softmax.softmax_attention),
        SOFTMAX._replace(masked=False),
    ),
    "softmax rounded too often": (_slightly(ref_softmax.softmax_attention, 150 * U), SOFTMAX),
    "softmax's sum has no gradient": (_sum_of_weights_has_no_gradient, SOFTMAX_BACKWARD),
    **{
        f"{name} of {f.__name__} lost": (_one_gradient_lost(f, i), case)
        for f, case, names in (
            (ref_delta.delta_backward, DELTA_BACKWARD, ("dq", "dk", "dv", "dbeta")),
            (ref_softmax.softmax_attention_backward, SOFTMAX_BACKWARD, ("dq", "dk", "dv")),
        )
        for i, name in enumerate(names)
    },
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_formula_fails(name):
    mutant, case = MUTANTS[name]
    operands = make(case)
    compare(case, operands, _single(oracle(case, operands), case))
    twin = case._replace(feature_map=twin_of(case.feature_map))
    wrong = mutant(*(x.astype("f8") for x in operands), **twin.options)
    with pytest.raises(AssertionError, match="is off by"):
        compare(case, operands, _single(wrong if case.backward else (wrong,), case))


def _single(arrays, case):
    """What a call in float32 would have returned."""
    arrays = tuple(x.astype("f4") for x in arrays)
    return arrays if case.backward else arrays[0]


def test_magnitude_is_the_definition():
    case = Case("causal", 6, 3, 2, feature_map="identity", normalize=False, dtype="float64")
    q, k, v = make(case)
    (size,) = evaluate(case, [q, k, v], np.float64, magnitude=True)
    weights = np.tril(abs(maps.get("identity")(q)) @ abs(k).T)
    close(size, weights @ abs(v), atol=0, rtol=1e-14)
