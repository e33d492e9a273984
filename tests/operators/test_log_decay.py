"""log_decay and its gradients: values, derivatives, broadcasting, bits, bad input."""

from functools import partial

import numpy as np
import pytest
from bounds import close, excess, roundings
from isas import ISAS
from layouts import LAYOUTS
from states import assert_same

import linattn
from linattn.reference import conv as ref

BOUNDS = (None, -5.0, -0.3)
DTYPES = ("float32", "float64")


def make(dtype="float64", shape=(3, 50, 4), param=(4,), seed=0):
    rng = np.random.default_rng(seed)
    x = 3 * rng.standard_normal(shape)
    A_log, dt_bias = rng.standard_normal((2, *param))
    return [y.astype(dtype) for y in (x, A_log, dt_bias, rng.standard_normal(shape))]


def wide(*arrays):
    kind = np.longdouble if arrays[0].dtype == np.float64 else np.float64
    return [x.astype(kind) for x in arrays]


def steepness(x, A_log, dt_bias, lower_bound):
    """How many roundings a value of relative size 1 is off by: x + dt_bias may cancel."""
    u = np.exp(A_log) if lower_bound is not None else 1
    return 8 + u * (abs(x) + abs(dt_bias)) + 4 * abs(A_log)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_the_twin(isa, name, dtype, lower_bound):
    isa(name)
    check(dtype, lower_bound)


def check(dtype, lower_bound, f=linattn.log_decay, backward=linattn.log_decay_backward):
    x, A_log, dt_bias, grad = make(dtype)
    X, A, B, G = wide(x, A_log, dt_bias, grad)
    u, tiny = float(np.finfo(dtype).eps), 1e8 * float(np.finfo(dtype).tiny)
    slack = u * steepness(X, A, B, lower_bound)
    o = f(x, A_log, dt_bias, lower_bound=lower_bound)
    expected = ref.log_decay(X, A, B, lower_bound=lower_bound)
    assert o.dtype == dtype
    assert excess(o, expected, slack * abs(expected) + tiny) <= 1
    grads = backward(x, A_log, dt_bias, grad, lower_bound=lower_bound)
    for i, (y, z) in enumerate(
        zip(grads, ref.log_decay_backward(X, A, B, G, lower_bound=lower_bound), strict=True)
    ):
        terms = ref.log_decay_backward(X, A, B, abs(G), lower_bound=lower_bound)[i]
        if i == 1 and lower_bound is not None:  # terms of either sign
            terms = ref.log_decay_backward(X, A, B, G * np.sign(X + B), lower_bound=lower_bound)[1]
            terms = abs(terms) + abs(ref.log_decay_backward(X, A, B, G, lower_bound=lower_bound)[1])
        assert y.dtype == dtype
        assert y.shape == z.shape
        assert excess(y, z, slack.max() * abs(terms) + 20 * u * abs(z).max() + tiny) <= 1


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rates_out_of_range(dtype, lower_bound):
    """exp(A_log) is inf, or 0, where the result is neither."""
    info = np.finfo(dtype)
    top, rng = np.log(float(info.max)), np.random.default_rng(0)
    A_log = rng.uniform(-1.4 * top, 1.4 * top, 3000).astype(dtype)
    x = np.concatenate([
        rng.uniform(-3 * top, 3 * top, 1000), rng.standard_normal(1000),
        rng.choice([-1, 1], 1000) * 10 ** rng.uniform(-30, 30, 1000),
    ]).astype(dtype)  # fmt: skip
    x[:5], A_log[:5] = [-200, 0, 0, -top - 10, 1e-30], [100, 100, 2 * top, top + 5, 1.1 * top]
    one, zero = np.ones_like(x), np.zeros_like(x)
    with np.errstate(all="ignore"):
        X, A, B, G = wide(x, A_log, zero, one)
        # Of the second form the exponent is e^A x, which is off by roundings of itself.
        steep = 1 if lower_bound is None else 1 + np.minimum(np.exp(A) * abs(X), top)
        o = linattn.log_decay(x, A_log, zero, lower_bound=lower_bound)
        grads = linattn.log_decay_backward(x, A_log, zero, one, lower_bound=lower_bound)
        twins = ref.log_decay_backward(X, A, B, G, lower_bound=lower_bound)
        expected = (ref.log_decay(X, A, B, lower_bound=lower_bound), *twins)
        for y, z in zip((o, *grads), expected, strict=True):
            assert not np.isnan(y).any()
            inside = abs(z) < float(info.max) * (1 - 1e-3)
            assert np.isinf(y[abs(z) > float(info.max) * (1 + 1e-3)]).all()
            allowed = 4 * float(info.eps) * steep * abs(z) + 200 * float(info.smallest_subnormal)
            assert excess(y[inside], z[inside], np.broadcast_to(allowed, z.shape)[inside]) <= 1


def test_the_rates_that_were_nan():
    """Infinity times 0."""
    x = np.float32(0)
    assert linattn.log_decay(x - 200, x + 100, x) == np.float32(-np.exp(-100.0))
    assert linattn.log_decay(x, x + 100, x, lower_bound=-5) == -2.5
    assert linattn.log_decay(x, x + 200, x, lower_bound=-5) == -2.5


def test_broadcasting():
    """Any shapes that broadcast, and gradients in each operand's own."""
    for shapes in (((), (), ()), ((5,), (), (5,)), ((4, 7), (4, 1), (7,)), ((1, 3), (2, 1), (1,))):
        rng = np.random.default_rng(0)
        operands = [rng.standard_normal(shape) for shape in shapes]
        o = linattn.log_decay(*operands)
        assert np.shape(o) == np.broadcast_shapes(*shapes)
        grads = linattn.log_decay_backward(*operands, np.ones_like(o))
        for y, z, operand in zip(
            grads, ref.log_decay_backward(*operands, np.ones_like(o)), operands, strict=True
        ):
            assert y.shape == operand.shape
            close(y, z, atol=1e-13)
    empty = linattn.log_decay_backward(np.ones((0, 3)), np.ones(3), np.ones(3), np.ones((0, 3)))
    np.testing.assert_array_equal(empty[1], np.zeros(3))


def test_weak_numbers_and_promotion():
    x = np.ones(3, np.float32)
    assert linattn.log_decay(x, 0.5, -1.0).dtype == np.float32
    assert linattn.log_decay(x, np.ones(1), -1.0).dtype == np.float64
    assert linattn.log_decay([1, 2], 0.5, 1).dtype == np.float64


@pytest.mark.parametrize("lower_bound", BOUNDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_rounded_once(dtype, lower_bound):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    arrays = [y.astype(dtype) for y in make()]
    single = [y.astype(np.float32) for y in arrays]
    options = {"lower_bound": lower_bound}
    o = linattn.log_decay(*arrays[:3], **options)
    assert o.dtype == dtype
    np.testing.assert_array_equal(o, linattn.log_decay(*single[:3], **options).astype(dtype))
    for y, z in zip(
        linattn.log_decay_backward(*arrays, **options),
        linattn.log_decay_backward(*single, **options),
        strict=True,
    ):
        np.testing.assert_array_equal(y, z.astype(dtype))


def test_threads_and_layouts_change_no_bit(threads):
    x, A_log, dt_bias, grad = make("float32", shape=(8, 3000, 12), param=(12,))
    threads(1)
    expected = linattn.log_decay(x, A_log, dt_bias)
    grads = linattn.log_decay_backward(x, A_log, dt_bias, grad)
    for count in (2, 5):
        threads(count)
        np.testing.assert_array_equal(linattn.log_decay(x, A_log, dt_bias), expected)
        again = linattn.log_decay_backward(x, A_log, dt_bias, grad)
        assert_same(again, grads)
    for lay in LAYOUTS.values():
        np.testing.assert_array_equal(linattn.log_decay(lay(x), A_log, dt_bias), expected)


def test_extremes():
    """No decay at all, decay to nothing, and NaN where a number is NaN, with no warning."""
    with np.errstate(all="raise"):
        x = np.array([-1e4, 1e4, 0.0])
        close(linattn.log_decay(x, 0.0, 0.0), [0, -1e4, -np.log(2)], atol=1e-15)
        close(linattn.log_decay(x, 0.0, 0.0, lower_bound=-5), [0, -5, -2.5], atol=1e-15)
        grads = linattn.log_decay_backward(x, 0.0, 0.0, np.ones(3))
        assert np.isfinite(grads[0]).all()
        assert np.isnan(linattn.log_decay(np.array([np.nan]), 0.0, 0.0)).all()


def test_long_sums():
    """A million equal terms in float32: summed one after another they would be far off."""
    x = np.zeros((2**20, 1), np.float32)
    _, dA_log, ddt_bias = linattn.log_decay_backward(
        x, np.zeros(1, "f4"), np.zeros(1, "f4"), np.broadcast_to(np.float32(0.3), x.shape)
    )
    total = 2**20 * float(np.float32(0.3))
    close(ddt_bias, [-total / 2], atol=roundings(4, ddt_bias))
    close(dA_log, [-total * np.log(2)], atol=roundings(8, dA_log))


@pytest.mark.parametrize(
    ("error", "argument", "changed"),
    [
        (ValueError, "A_log has shape", {"A_log": np.ones(5)}),
        (ValueError, "dt_bias has shape", {"dt_bias": np.ones((2, 1, 3))}),
        (TypeError, "x has dtype", {"x": np.ones((2, 3, 4), complex)}),
        (TypeError, "A_log has dtype", {"A_log": np.array(["a"])}),
        (TypeError, "dt_bias is a masked", {"dt_bias": np.ma.ones(4)}),
        (TypeError, "lower_bound is 'low'", {"lower_bound": "low"}),
        (ValueError, "lower_bound is -inf", {"lower_bound": -np.inf}),
        (ValueError, "lower_bound is nan", {"lower_bound": np.nan}),
    ],
)
def test_bad_input_names_the_argument(error, argument, changed):
    good = {"x": np.ones((2, 3, 4)), "A_log": np.ones(4), "dt_bias": np.ones(4)}
    with pytest.raises(error, match=f"log_decay: {argument}"):
        linattn.log_decay(**{**good, **changed})
    with pytest.raises(error, match=f"log_decay_backward: {argument}"):
        linattn.log_decay_backward(**{**good, "grad": np.ones((2, 3, 4)), **changed})


def test_bad_gradient():
    with pytest.raises(ValueError, match="grad has shape"):
        linattn.log_decay_backward(np.ones(3), 0.0, 0.0, np.ones(4))


MUTANTS = {
    "no bias": lambda f, x, A, b, *g: f(x, A, 0 * b, *g),
    "rate not exponential": lambda f, x, A, b, *g: f(x, np.log(abs(A)), b, *g),
    "sign": lambda f, x, A, b, *g: tuple(-y for y in f(x, A, b, *g)) if g else -f(x, A, b),
    "dA without its sum over z": lambda f, x, A, b, *g: (
        (f(x, A, b, *g)[0], *2 * f(x, A, b, *g)[2:]) if g else f(x, A, b)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_ones_are_found(name):
    def mutant(f):
        return lambda *given, **options: MUTANTS[name](partial(f, **options), *given)

    with pytest.raises(AssertionError):
        check("float32", None, mutant(linattn.log_decay), mutant(linattn.log_decay_backward))
