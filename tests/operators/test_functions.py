"""exp, log1p, sigmoid, softplus, sin and cos: units of the last place, over the whole range."""

import mpmath
import numpy as np
import pytest
from bounds import close
from cases import DTYPES
from isas import ISAS

from linattn._core.gufuncs import internal_ufuncs

NAMES = ("exp", "log1p", "sigmoid", "softplus", "sin", "cos")
EXACT = {
    "exp": mpmath.exp,
    "log1p": lambda x: mpmath.log(1 + x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log(1 + mpmath.exp(x)),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
}


def wide(name, x):
    """In long double, whose functions are right to its last place but for a few."""
    x = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            return 1 / (1 + np.exp(-x))
        if name == "softplus":
            return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))
        return getattr(np, name)(x)


def sample(dtype, count=200_000):
    """Bit patterns of every magnitude and sign, and the usual range densely."""
    rng = np.random.default_rng(0)
    word = {"float32": np.uint32, "float64": np.uint64}[dtype]
    bits = rng.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True).view(dtype)
    near_zeros = (np.arange(1, 20_000) * (np.pi / 2)).astype(dtype)  # of sin and cos
    usual = [np.linspace(-a, a, count // 4 + 1).astype(dtype) for a in (2, 30, 800)]
    return np.concatenate([bits[np.isfinite(bits)], near_zeros, *usual])


def ulps(actual, exact, dtype):
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        error = abs(actual.astype(np.longdouble) - exact) / np.spacing(abs(rounded))
    return np.where(np.isfinite(rounded), error, 0)


@pytest.mark.parametrize("set_name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_two_units_of_the_last_place(isa, set_name, dtype, name, record_property):
    isa(set_name)
    x = sample(dtype)
    exact = wide(name, x)
    actual = internal_ufuncs[name](x)
    worst = ulps(actual, exact, dtype).max()
    record_property("ulps", float(worst))
    assert worst <= 2
    with np.errstate(over="ignore"):
        rounded = exact.astype(dtype)
    overflowed = np.isinf(rounded)
    np.testing.assert_array_equal(actual[overflowed], rounded[overflowed])
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(exact))


@pytest.mark.parametrize("name", NAMES)
def test_against_mpmath(name):
    """Long double is no judge of itself: a smaller sample to 1,200 bits."""
    x = sample("float64", 400)[::25]
    x = x[x > -1] if name == "log1p" else x
    x = x[abs(x) < 1e4] if name in ("exp", "softplus", "sigmoid") else x
    with mpmath.workprec(1200):
        exact = [EXACT[name](mpmath.mpf(float(v))) for v in x]
        actual = internal_ufuncs[name](x)
        for value, result, right in zip(x, actual, exact, strict=True):
            if abs(right) < mpmath.mpf(np.finfo(float).max):
                unit = mpmath.mpf(float(np.spacing(abs(float(right)))))
                assert abs(mpmath.mpf(float(result)) - right) <= 2 * unit, (name, value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends(dtype):
    x = np.array([np.inf, -np.inf, np.nan, 1000, -1000, 0.0, -0.0], dtype)
    expected = {
        "log1p": [np.inf, np.nan, np.nan, np.log1p(1000), np.nan, 0, 0],
        "sigmoid": [1, 0, np.nan, 1, 0, 0.5, 0.5],
        "softplus": [np.inf, 0, np.nan, 1000, 0, np.log(2), np.log(2)],
        "sin": [np.nan, np.nan, np.nan, np.sin(1000), -np.sin(1000), 0, 0],
        "cos": [np.nan, np.nan, np.nan, np.cos(1000), np.cos(1000), 1, 1],
    }
    for name, values in expected.items():
        close(internal_ufuncs[name](x), values, rtol=1e-6, atol=1e-300)
    assert internal_ufuncs["log1p"](np.array([-1.0], dtype)) == -np.inf
    assert np.signbit(internal_ufuncs["sin"](x)[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates(dtype):
    """Gates and their gradients, at +-1000 as well."""
    rng = np.random.default_rng(0)
    a, b, g = (rng.standard_normal(999).astype(dtype) for _ in range(3))
    a[:4], b[:4] = [1000, -1000, 1000, -1000], [1000, 1000, -1000, -1000]
    for name, f, slope in (
        ("gate", lambda x: x, np.ones_like),
        ("softplus_gate", lambda x: wide("softplus", x), lambda x: wide("sigmoid", x)),
    ):
        s, s_minus = wide("sigmoid", b), wide("sigmoid", -b)
        wanted = [f(a) * s, g * slope(a) * s, g * f(a) * s * s_minus]
        actual = [internal_ufuncs[name](a, b), *internal_ufuncs[f"{name}_backward"](a, b, g)]
        for x, y in zip(actual, wanted, strict=True):
            assert np.isfinite(x).all()
            close(x, y.astype(dtype), atol=0, rtol=8 * np.finfo(dtype).eps)


def test_strides_in_place_and_threads(threads):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 700))
    expected = internal_ufuncs["sigmoid"](x)
    for count in (1, 2, 5):
        threads(count)
        np.testing.assert_array_equal(internal_ufuncs["sigmoid"](x), expected)
    np.testing.assert_array_equal(internal_ufuncs["sigmoid"](x[::-2, ::3]), expected[::-2, ::3])
    np.testing.assert_array_equal(
        internal_ufuncs["gate"](x, x[0]), internal_ufuncs["gate"](x, x * 0 + x[0])
    )
    y = x.copy()
    assert internal_ufuncs["sigmoid"](y, out=y) is y
    np.testing.assert_array_equal(y, expected)
