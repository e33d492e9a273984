"""linear_scan of complex numbers, beside what the table checks: wide rows, dtypes, errors."""

from __future__ import annotations

import numpy as np
import pytest
from bounds import close
from slow import looped
from states import assert_same, flat

import linattn
from linattn import State
from linattn.reference import scan as ref


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return 0.6 * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))


def same(got, expected, slack=64):
    """Within so many units of the largest number: factors are about 1 in magnitude."""
    assert got.shape == expected.shape
    eps = np.finfo(got.dtype).eps
    largest = abs(expected).max(initial=0)
    close(got, expected, atol=slack * eps * largest)


@looped(log=[False, True], reverse=[False, True], dtype=["c8", "c16"])
def test_wide_rows(dtype, **options):
    for n, m in ((200, 32), (40, 2100)):
        rng = np.random.default_rng(0)
        a, x, start = (draw(rng, *shape).astype(dtype) for shape in ((n, m), (n, m), (m,)))
        more = {**options, "return_state": True}
        h, last = linattn.linear_scan(a, x, initial_state=State(start), **more)
        expected, state = ref.linear_scan(a, x, initial_state=start, **more)
        assert h.dtype == last.s.dtype == dtype
        same(h, expected)
        same(last.s, state)


def test_real_operands():
    """Beside a complex operand a real one has a real gradient."""
    rng = np.random.default_rng(0)
    a, x = draw(rng, 7, 3).astype("c8"), rng.standard_normal((7, 3)).astype("f4")
    h = linattn.linear_scan(a, x)
    assert h.dtype == "c8"
    da, dx = linattn.linear_scan_backward(a, x, np.ones((7, 3), "f4"))
    assert da.dtype == "c8" and dx.dtype == "f4"
    same(dx + 0j, linattn.linear_scan_backward(a, x + 0j, np.ones((7, 3), "f4"))[1].real + 0j)
    assert linattn.linear_scan(0.5, a).dtype == "c8"
    assert linattn.linear_scan(np.float64(1), a.astype("c16")).dtype == "c16"


def test_dtypes():
    """Python's numbers determine no precision, and other operands promote as in NumPy."""
    rng = np.random.default_rng(0)
    z, y = draw(rng, 7, 3).astype("c8"), rng.standard_normal((7, 3))
    cases = [
        (0.5j, y.astype("f4"), "c8"), (0.5j, y.astype("f2"), "c8"), (0.5j, y, "c16"),
        (0.5j, y.astype("i1"), "c16"), (2, z, "c8"), (z, y, "c16"), (z, y.astype("i2"), "c8"),
        (y.astype("i8"), z, "c16"), (z.astype(">c8"), z.astype("c16"), "c16"),
    ]  # fmt: skip
    for a, x, dtype in cases:
        h, end = linattn.linear_scan(a, x, return_state=True)
        assert h.dtype == end.s.dtype == dtype
        expected = linattn.linear_scan(*(np.asarray(y, dtype) for y in (a, x)))
        np.testing.assert_array_equal(h, expected)


def test_gradients_of_repeated_real_operands():
    rng = np.random.default_rng(0)
    x, grad = draw(rng, 2, 7, 3), draw(rng, 2, 7, 3)
    for a in (0.5, np.full((7, 1), 0.5), np.full(3, 0.5)):
        da, _ = linattn.linear_scan_backward(a, x, grad)
        whole, _ = linattn.linear_scan_backward(np.full(x.shape, 0.5 + 0j), x, grad)
        axes = {0: (0, 1, 2), 1: (0, 1), 2: (0, 2)}[np.ndim(a)]
        assert da.dtype == "f8" and da.shape == np.shape(a)
        same(da + 0j, whole.sum(axes).real.reshape(da.shape) + 0j)


C = np.ones((7, 3), complex)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"out": np.empty((7, 3))}, TypeError, "out has dtype float64; expected complex128"),
        ({"out": np.empty((6, 3), complex)}, ValueError, r"out has shape \(6, 3\)"),
        ({"x": C[:6]}, ValueError, r"a has shape \(7, 3\), which does not"),
        ({"x": np.array(["x"])}, TypeError, "x has dtype <U1"),
        ({"log": 1}, TypeError, "log is 1; expected True or False"),
        ({"initial_state": State(np.zeros(3))}, TypeError, "initial_state.s has dtype float64"),
        ({"initial_state": State(C[0, :2])}, ValueError, r"initial_state.s has shape \(2,\)"),
    ],
)
def test_errors(options, error, words):
    with pytest.raises(error, match=f"^linear_scan: {words}"):
        linattn.linear_scan(C, **{"x": C, **options})


def test_errors_of_gradients_and_gufuncs():
    with pytest.raises(TypeError, match=r"^linear_scan_backward: grad_out has dtype complex128"):
        linattn.linear_scan_backward(C.real, C.real, C)
    with pytest.raises(TypeError, match=r"^linear_scan: no loop .*complex64, complex128"):
        linattn.ufuncs.linear_scan(C.astype(object), C, 0.0, 0.0)
    with pytest.raises(TypeError, match=r"^causal_identity_sum: no loop .*float32 or float64"):
        linattn.ufuncs.causal_identity_sum(C, C, C, 1.0)


@looped(dtype=["c8", "c16"], given=["f8", "i8", "c8", "c16", ">c8", ">c16"], at=[None, [2, 6]])
def test_the_operands_determine_the_dtype_of_gradients(dtype, given, at):
    a, x, g = np.random.default_rng(0).standard_normal((3, 6, 4)) + 0.5j
    a, x, g = a.astype(dtype), x.astype(dtype), g.real.astype(given)
    last = State(np.ones((2, 4) if at else 4, dtype))
    options = {"grad_state": last, "state_at": at}
    grads = linattn.linear_scan_backward(a, x, g, **options)
    assert {y.dtype for y in flat(grads)} == {np.dtype(dtype)}
    assert_same(grads, linattn.linear_scan_backward(a, x, g.astype(dtype), **options))


def test_resets():
    """A factor of 0, e^-inf whatever its phase, forgets what was before."""
    a, x = draw(np.random.default_rng(0), 2, 9, 5)
    a[4] = complex(-np.inf, np.nan)
    np.testing.assert_array_equal(linattn.linear_scan(a, x, log=True)[4], x[4])
