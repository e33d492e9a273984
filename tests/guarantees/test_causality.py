"""Causality to the bit: a change at one position affects only what depends on it.

The twin says who depends on whom.  Where poison leaves the twin's result as it was, the kernel's
may not change by a bit; where it makes the twin's NaN, the kernel's cannot be a number.
"""

from itertools import product

import numpy as np
import pytest
from cases import BACKWARD, ELEMENTWISE, FORWARD, Case, call, make
from slow import slow

import linattn
from linattn.reference import linear as ref

POSITIONS = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 48, 63, 64, 65, 69)
N = 70


def results(module, case, operands):
    with np.errstate(all="ignore"):
        result = call(module, case, operands)
    return result if case.backward else (result,)


def poisoned(operands, which, t, column, value):
    operands = list(operands)
    operands[which] = operands[which].copy()
    operands[which][..., t, column] = value
    return operands


def assert_poison_stays(case, operands, clean, poison):
    """Poison is (which, t, column, value)."""
    bad = poisoned(operands, *poison)
    kernel, twin = results(linattn, case, bad), results(ref, case, bad)
    for x, y, x0, y0 in zip(kernel, twin, *clean, strict=True):
        independent = y == y0
        same = x == x0
        assert same[independent].all(), (
            f"{case}: {poison} changed {np.argwhere(independent > same)[0]}"
        )
        assert not np.isfinite(x[np.isnan(y)]).any(), f"{case}: {poison} was lost"


def check(case, positions, columns=(slice(None),), values=(np.nan,), operands=None):
    """Poison in columns of tokens of each operand, or of some."""
    given = make(case)
    clean = results(linattn, case, given), results(ref, case, given)
    for poison in product(operands or range(len(given)), positions, columns, values):
        assert_poison_stays(case, given, clean, poison)


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
@pytest.mark.parametrize("normalize", [True, *slow(False)])
def test_nan_and_inf(operator, normalize):
    for dtype, d, m in [("float32", 5, 17), ("float32", 16, 16), ("float64", 9, 8)]:
        case = Case(operator, N, d, m, dtype=dtype, normalize=normalize)
        check(case, POSITIONS)
        check(case, POSITIONS[::4], (-1,))
        check(case, POSITIONS[::4], (0,), (np.inf,))


@pytest.mark.parametrize("operator", ["causal", "causal_backward"])
@pytest.mark.parametrize("feature_map", ELEMENTWISE)
def test_other_maps(operator, feature_map):
    for normalize in (True, False):
        case = Case(operator, N, 8, 12, feature_map=feature_map, normalize=normalize)
        check(case, (0, 3, 4, 31, 32, 33, 69))


@pytest.mark.parametrize("operator", ["causal", "causal_backward"])
def test_wide_values(operator):
    """More columns than one panel holds."""
    case = Case(operator, 40, 33, 200, normalize=False)
    check(case, (0, 17, 32, 39), (0, 63, 64, 127, 128, 199), operands=(2,))


def test_forward_does_not_look_ahead():
    """Any change of the future, however wild, in a sequence of many chunks."""
    rng = np.random.default_rng(3)
    n = 2**12 + 3
    cuts = [16, 32, 64, 2**11]
    for normalize in (True, False):
        case = Case("causal", n, 3, 2, normalize=normalize)
        operands = make(case)
        (clean,) = results(linattn, case, operands)
        for t in (1, *(cut + i for cut in cuts for i in (-1, 0, 1)), n - 1):
            future = [x.copy() for x in operands]
            for x in future:
                x[t:] = rng.choice([np.nan, np.inf, -np.inf, 1e38, 0], x[t:].shape)
            (o,) = results(linattn, case, future)
            np.testing.assert_array_equal(o[:t], clean[:t])


def test_gradient_does_not_look_back():
    """dk and dv of tokens j > t depend on nothing a query or a cotangent at t holds."""
    n = 20000
    case = Case("causal_backward", n, 8, 8, normalize=False)
    operands = make(case)
    clean = results(linattn, case, operands)
    for t in (0, 4096, 8191, 16384, n - 2):
        for which in (0, 3):
            bad = poisoned(operands, which, t, slice(None), np.nan)
            dq, dk, dv = results(linattn, case, bad)
            np.testing.assert_array_equal(dk[t + 1 :], clean[1][t + 1 :])
            np.testing.assert_array_equal(dv[t + 1 :], clean[2][t + 1 :])
            rest = np.arange(n) != t
            np.testing.assert_array_equal(dq[rest], clean[0][rest])
