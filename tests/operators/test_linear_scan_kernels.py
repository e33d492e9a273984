"""The gufuncs of linear_scan, of real and of complex numbers, against their twins."""

import numpy as np
import pytest
from scan_calls import LAYOUTS
from slow import slow

from linattn._core.gufuncs import ufuncs


@pytest.mark.parametrize("reverse", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "sizes", [(3, 13), (61, 3), (64, 0), *slow((3, 1), (16, 0), (64, 1), (300, 7))]
)
def test_results_larger_than_the_caches(sizes, dtype, reverse):
    """They are written past them, to every boundary of a vector, and no further."""
    m, first = sizes
    n, width = 9, -(-(first + m) // 16) * 16  # rows have the same boundaries
    heads = 2**22 // (n * m) + 1
    rng = np.random.default_rng(2)
    a, x = (rng.uniform(-1, 1, (n, m)).astype(dtype) for _ in range(2))
    expected = ufuncs["linear_scan"](a, x, 0.0, reverse)
    memory = np.zeros(heads * n * width + 64, dtype)
    start = -memory.ctypes.data % 64 // memory.itemsize
    whole = memory[start : start + heads * n * width].reshape(heads, n, width)
    whole[...] = 7
    out = whole[..., first : first + m]
    ufuncs["linear_scan"](np.broadcast_to(a, (heads, n, m)), x, 0.0, reverse, out=out)
    assert (out == expected).all()
    assert (whole[..., :first] == 7).all() and (whole[..., first + m :] == 7).all()


def complex_operands(n, m, dtype, log):
    """Factors of magnitude 1 at most, or their logarithms."""
    rng = np.random.default_rng([n, m])
    a = rng.uniform(-1 if log else 0, 0 if log else 1, (n, m)) + 0j
    a = a + 1j * rng.uniform(-3, 3, (n, m)) if log else a * np.exp(1j * rng.uniform(-3, 3, (n, m)))
    shapes = [(n, m), (n, m), (1, m), (1, m)]
    others = [rng.standard_normal((*shape, 2)) @ [1, 1j] for shape in shapes]
    return [x.astype(np.result_type(dtype, np.complex64)) for x in (a, *others)]


@pytest.mark.parametrize("log", [0.0, 1.0])
def test_complex_layouts_and_threads(threads, log):
    a, x, g, *_ = complex_operands(70, 500, "float32", log)
    results = []
    for count in (1, 2, 3):
        threads(count)
        for layout in (lambda y: y, *LAYOUTS.values()):
            operands = [layout(y) for y in (a, x, g)]
            results.append([ufuncs["linear_scan"](*operands[:2], log, 0.0)])
            results[-1].extend(ufuncs["linear_scan_backward"](*operands, log, 0.0))
    for other in results[1:]:
        for y, z in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(y, z)


def test_complex_resets():
    """A factor of 0, e^-inf whatever its phase, forgets what was before."""
    a, x, *_ = complex_operands(9, 5, "float64", 1.0)
    a[4] = complex(-np.inf, np.nan)
    h = ufuncs["linear_scan"](a, x, 1.0, 0.0)
    np.testing.assert_array_equal(h[4], x[4])
