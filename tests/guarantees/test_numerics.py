"""Accuracy: the maps themselves, values near the ends of the range, and very long sequences."""

import numpy as np
import pytest
from bounds import close, compare, evaluate, excess, worst
from cases import BACKWARD, DTYPES, ELEMENTWISE, FORWARD, Case, call, make
from operands import vanishes
from slow import crossed

import linattn
from linattn import feature_maps
from linattn.reference import maps

pytestmark = pytest.mark.unsanitized


def known(feature_map, x):
    """Queries of the shape of x, zeros where these have features, else ones; phi of each."""
    q = np.full_like(x, vanishes(feature_map))
    return q, maps.get(feature_map)(np.float64(q.flat[0])).astype(x.dtype)


def through(feature_map, x):
    """phi(x) as the kernels see it: one query, whose features are known, and one key."""
    q, features = known(feature_map, x)
    core = (..., None, None)
    o = linattn.noncausal(
        q[core], x[core], np.ones_like(x)[core], feature_map=feature_map, normalize=False
    )
    return o[..., 0, 0] / features


def slope_through(feature_map, x):
    """phi'(x), as the gradient of the same call."""
    q, features = known(feature_map, x)
    core = (..., None, None)
    one = np.ones_like(x)[core]
    _, dk, _ = linattn.noncausal_backward(
        q[core], x[core], one, one, feature_map=feature_map, normalize=False
    )
    return dk[..., 0, 0] / features


def map_inputs(dtype):
    info = np.finfo(dtype)
    top = np.log(info.max)
    grid = np.concatenate([
        np.linspace(-top - 30, top + 5, 20001),
        np.linspace(-2, 2, 4001),
        np.geomspace(info.tiny, 1, 500),
        -np.geomspace(info.tiny, 1, 500),
        [0.0, -0.0, info.max, -info.max],
    ])  # fmt: skip
    with np.errstate(over="ignore"):
        return grid.astype(dtype)


@pytest.mark.parametrize("feature_map", ELEMENTWISE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_maps(feature_map, dtype):
    """Within 4 units of the last place, or of the smallest normal number where phi underflows."""
    x = map_inputs(dtype)
    info = np.finfo(dtype)
    phi = maps.get(feature_map)
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        pairs = [
            (through(feature_map, x), phi(wide)),
            (slope_through(feature_map, x), phi.backward(wide, np.ones_like(wide))),
        ]
    for actual, expected in pairs:
        top = np.longdouble(info.max)
        finite = abs(expected) < top * (1 - 8 * info.eps)
        allowed = 4 * info.eps * abs(expected[finite]) + info.tiny
        wrong = excess(actual[finite], expected[finite], allowed)
        assert wrong <= 1, f"{feature_map} {dtype}: {wrong}"
        overflowed = abs(expected) > top * (1 + 8 * info.eps)
        assert (actual[overflowed] == np.copysign(np.inf, expected[overflowed])).all()


@pytest.mark.parametrize("feature_map", ELEMENTWISE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_maps_of_inf_and_nan(feature_map, dtype):
    x = np.array([np.inf, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(through(feature_map, x), maps.get(feature_map)(x))


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_and_small_values(operator, dtype):
    """Each operand scaled up and down by powers of two, as far as no product overflows."""
    far = 2.0**20 if dtype == "float32" else 2.0**200
    for feature_map in ("identity", "relu"):
        for normalize in (True, False):
            case = Case(
                operator, 37, 5, 8,
                feature_map=feature_map, normalize=normalize, dtype=dtype, eps=0.0,
            )  # fmt: skip
            for which in range(4 if case.backward else 3):
                for factor in (far, 1 / far):
                    operands = [abs(x) + x.dtype.type(0.01) for x in make(case)]
                    operands[which] = operands[which] * x_type(dtype)(factor)
                    compare(case, operands, call(linattn, case, operands))
    for feature_map, low, high in [("elu", -30, 1e6), ("softplus", -30, 1e6), ("exp", -30, 30)]:
        rng = np.random.default_rng(5)
        for normalize in (True, False):
            case = Case(
                operator, 37, 5, 8,
                feature_map=feature_map, normalize=normalize, dtype=dtype, eps=0.0,
            )  # fmt: skip
            operands = make(case)
            for which in (0, 1):
                size = rng.uniform(low, high, operands[which].shape)
                operands[which] = size.astype(dtype)
                compare(case, operands, call(linattn, case, operands))


def x_type(dtype):
    return np.dtype(dtype).type


LONG = 65536


#: Positive and growing ones, and random ones without the normaliser, are slow tests.
LONG_INPUTS = crossed(
    lambda inputs, normalize: inputs == "constant" or (inputs == "random" and normalize),
    ["random", "constant", "positive", "growing"],
    [True, False],
)


@pytest.mark.parametrize(("inputs", "normalize"), LONG_INPUTS)
@pytest.mark.parametrize("operator", FORWARD)
def test_65536_tokens(operator, normalize, inputs, record_property):
    """Rounding must not pile up; constant inputs are the worst, every addition errs alike."""
    width = 64 if inputs == "random" else 32
    case = Case(operator, LONG, width, width, normalize=normalize)
    operands = long_operands(case, inputs)
    result = call(linattn, case, operands)
    expected = evaluate(case, operands, np.float64)
    # Equal products in a chain of 32 round alike: up to 10 u by themselves.
    slack = 2.0 if inputs == "constant" else 1.0
    record_property("excess", compare(case, operands, result, expected, slack=slack))


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "normalize"), LONG_INPUTS[:6])
@pytest.mark.parametrize("operator", BACKWARD)
def test_65536_tokens_backward(operator, normalize, inputs, record_property):
    case = Case(operator, LONG, 16, 16, normalize=normalize)
    operands = long_operands(case, inputs)
    result = call(linattn, case, operands)
    expected = evaluate(case, operands, np.float64)
    record_property("excess", compare(case, operands, result, expected))


def long_operands(case, inputs):
    operands = make(case)
    if inputs == "constant":  # not a power of two: each sum must round
        return [
            np.full_like(x, value) for x, value in zip(operands, (0.3, 0.7, 1.1, 0.9), strict=False)
        ]
    if inputs == "positive":
        return [abs(x) for x in operands]
    if inputs == "growing":
        ramp = np.linspace(0.01, 10, case.n, dtype=case.dtype)[:, None]
        return [x * ramp for x in operands]
    return operands


def test_65536_tokens_in_double():
    for operator in FORWARD:
        case = Case(operator, LONG, 8, 8, dtype="float64")
        operands = make(case)
        expected = evaluate(case, operands, np.longdouble)
        compare(case, operands, call(linattn, case, operands), expected)


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
def test_identity_with_signs(operator):
    """Weights of both signs nearly cancel in the denominator: as exact as that allows."""
    case = Case(operator, 60, 8, 8, feature_map="identity", dtype="float64")
    operands = make(case._replace(normalize=False))
    compare(case, operands, call(linattn, case, operands))


FLOATING_POINT_MODE = """
import numpy as np
def subnormals():
    x = np.array([1e-310, 1e-310])
    y = np.array([1e-40, 1e-40], "f4")
    return float((x * 0.5)[0]), float((y * np.float32(0.5))[0])
before = subnormals()
import linattn
q = np.ones((2, 5000, 16), "f4")
linattn.causal(q, q, q)
assert before == subnormals() and min(before) > 0, (before, subnormals())
"""


def test_import_changes_no_floating_point_mode(interpreter):
    interpreter(FLOATING_POINT_MODE)


@pytest.mark.parametrize("n", [37, 3000])
@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_denominators_without_a_finite_inverse(operator, dtype, n):
    """They are subnormal, or next to it, and the quotients as right as any."""
    case = Case(operator, n, 5, 8, feature_map="identity", dtype=dtype, eps=0.0)
    rng = np.random.default_rng(0)
    operands = [rng.integers(1, 4, shape).astype(dtype) for shape in case.shapes]
    for x in operands[:2]:  # the products are multiples of the smallest number
        x *= x_type(dtype)(2.0**-70 if dtype == "float32" else 2.0**-535)
    with np.errstate(over="raise", invalid="raise"):
        result = call(linattn, case, operands)
    exact = evaluate(case, operands, np.longdouble)
    sizes = evaluate(case, operands, np.longdouble, magnitude=True)
    unit = float(np.finfo(dtype).eps) / 2
    for x, y, size in zip(result if case.backward else (result,), exact, sizes, strict=True):
        assert excess(x, y, worst(case) * unit * size) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_denominators_of_steps_and_maps(dtype):
    small = x_type(dtype)(2.0**-70 if dtype == "float32" else 2.0**-535)
    q, k = (np.full((1, 3), small * x) for x in (1, 3))
    v = np.arange(1, 6, dtype=dtype)[None]
    state = linattn.State(np.zeros((3, 5), dtype), np.zeros(3, dtype))
    o, _ = linattn.step(q[0], k[0], v[0], state, feature_map="identity", eps=0.0)
    np.testing.assert_array_equal(o, v[0])
    phi = feature_maps.get("identity").normalized(eps=0.0)
    x = np.array([[1, 2, 5]], dtype) * small * small
    np.testing.assert_array_equal(phi(x), np.array([[1, 2, 5]], dtype) / 8)
    grad = np.array([[3, 1, 2]], dtype) * x_type(dtype)(2.0**-60)
    wide = maps.SumNormalized(maps.get("identity"), eps=0.0)
    expected = wide.backward(x.astype(np.longdouble), grad.astype(np.longdouble))
    size = float(abs(expected).max())
    close(phi.backward(x, grad) / size, expected / size, atol=8 * np.finfo(dtype).eps)
