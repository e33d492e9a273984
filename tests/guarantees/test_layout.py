"""Any strides, any broadcasting, any `out`: the same bits, and no operand touched."""

import numpy as np
import pytest
from cases import BACKWARD, FORWARD, Case, call, make
from layouts import LAYOUTS

import linattn
from linattn import feature_maps
from linattn._core.gufuncs import internal_ufuncs

OPERATORS = FORWARD + BACKWARD


def results(case, operands):
    result = call(linattn, case, operands)
    return result if case.backward else (result,)


def assert_same(actual, expected, message=""):
    for x, y in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=message, strict=True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_result_is_fresh_and_contiguous(operator):
    case = Case(operator, 9, 4, 5, lead=(2, 3))
    operands = make(case)
    for x in results(case, operands):
        assert type(x) is np.ndarray
        assert x.flags.c_contiguous and x.flags.owndata and x.flags.writeable
        assert not any(np.shares_memory(x, y) for y in operands)


@pytest.mark.parametrize("operator", OPERATORS)
def test_results_have_the_order_of_operands(operator):
    """As those of NumPy's elementwise functions: heads that lie side by side stay so."""
    case = Case(operator, 9, 4, 5, lead=(2, 3))
    plain = make(case)
    operands = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in plain]
    found = results(case, operands)
    for x in found:
        assert x.swapaxes(1, 2).flags.c_contiguous and x.flags.owndata and x.flags.writeable
    assert_same(found, results(case, plain))
    shared = [np.broadcast_to(x[:1], x.shape) for x in operands]
    for x in results(case, shared):
        assert x.flags.c_contiguous  # operands that repeat their memory have no order


@pytest.mark.parametrize("operator", BACKWARD)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_no_bit_of_a_sum_over_heads(operator, layout):
    """NumPy lays its own outputs out as operands are, and sums in the order of memory."""
    n, d, m = 9, 5, 6
    rng = np.random.default_rng(0)
    case = Case(operator, n, d, m)
    shapes = ((4, 5, n, d), (1, n, d), (n, m), (4, 5, n, m))
    plain = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    expected = results(case, plain)
    for turn in (lambda x: x, lambda x: x.swapaxes(0, 1).copy().swapaxes(0, 1)):
        operands = [LAYOUTS[layout](x) if x.ndim < 4 else turn(x) for x in plain]
        assert_same(results(case, operands), expected)
        operands = [LAYOUTS[layout](x) if x.ndim == 4 else x for x in plain]
        assert_same(results(case, operands), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_no_bit_of_matrix_products(layout):
    """NumPy hands some layouts to its BLAS as they are, and multiplies others by itself."""
    rng = np.random.default_rng(0)
    phi = feature_maps.FeedforwardKernel.aoglu(3, 7, 2, rng=1)
    for dtype in ("f4", "f8"):
        draw = lambda *shape, dtype=dtype: rng.standard_normal(shape).astype(dtype)  # noqa: E731
        sizes = ((9, 7), (12, 7), (12, 5), (12, 4), (12, 4), (9, 5))
        operands = [draw(2, 3, *size) for size in sizes]
        laid = [LAYOUTS[layout](x) for x in operands]
        expected = linattn.linformer_backward(*operands)
        assert_same(linattn.linformer_backward(*laid), expected)
        q, k, v, *_, g = operands
        expected = linattn.noncausal_backward(q, k, v, g, feature_map=phi)
        q, k, v, *_, g = laid
        assert_same(linattn.noncausal_backward(q, k, v, g, feature_map=phi), expected)


WHOLE = {  # gufuncs: their operands, and what comes after them
    **{f"{operator}_elu": ("qkv", (1.0, 1e-6)) for operator in FORWARD},
    **{f"{operator}_elu": ("qkvg", (1.0, 1e-6)) for operator in BACKWARD},
    "delta_identity": ("qkvb", (1.0,)),
    "delta_backward_identity": ("qkvbg", (1.0,)),
    "softmax": ("qkv", (0.1, 0.0)),
    "softmax_backward": ("qkvg", (0.1, 0.0)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_output_may_be_an_operand(threads, name):
    """The whole of one: NumPy takes that to be safe, and copies only what overlaps in part."""
    letters, numbers = WHOLE[name]
    f = getattr(linattn.ufuncs, name, None) or internal_ufuncs[name]
    rng = np.random.default_rng(0)
    for n, heads, count in ((20, 5, 1), (300, 1, 4), (300, 5, 4)):
        threads(count)
        arrays = {x: rng.standard_normal((heads, n, 64)).astype("f4") for x in "qkvg"}
        arrays |= {"k": arrays["k"] / 8, "b": rng.random((heads, n)).astype("f4")}
        plain = [arrays[x] for x in letters]
        expected = f(*plain, *numbers)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for which, turned in ((i, t) for i in range(len(plain)) for t in (False, True)):
            for to in range(len(expected)):
                operands = [x.copy() for x in plain]
                if operands[which].shape != expected[to].shape:
                    continue
                if turned:
                    operands[which] = operands[which][::-1, ::-1].copy()[::-1, ::-1]
                out = [None] * len(expected)
                out[to] = operands[which]
                result = f(*operands, *numbers, out=tuple(out))
                assert_same(result if isinstance(result, tuple) else (result,), expected)
