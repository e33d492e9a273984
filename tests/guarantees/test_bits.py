"""What changes no bit of any operator's results, and what no operator writes to."""

import numpy as np
import pytest
from layouts import LAYOUTS
from states import assert_same, flat
from table import ALL, CASES, FIRST, SHARED, apply, first_of

from linattn import reference

EACH = pytest.mark.parametrize("case", ALL, ids=str)
HELD = pytest.mark.parametrize("case", CASES, ids=str)
MATRICES = {"fortran", "features_first", "every_second_row", "rows_backwards"}


def laid(x, layout):
    if (layout in MATRICES and x.ndim < 2) or (layout == "token_major" and x.ndim < 3):
        return x.copy()
    return LAYOUTS[layout](x)


@EACH
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_layouts(case, layout, dtype):
    """Of each operand alone, then of all of them and the states; none is written to."""
    operands = case.operands((2, 3), 20, d=6, m=5, dtype=dtype)
    expected = case.results(operands)
    for names in ([x] for x in operands):
        given = operands | {x: laid(operands[x], layout) for x in names}
        assert_same(case.results(given), expected, f"{layout} {names}")
    given = {x: laid(y, layout) for x, y in operands.items()}
    before = {x: y.tobytes() for x, y in given.items()}
    more = {}
    if case.held and dtype != "float16":
        start = case.state((2, 3), dtype=dtype, d=6, m=5)
        more = {"initial_state": start, "grad_state": start}
        expected = case.results(operands, **more)
        if layout != "byte_swapped":
            more = {x: apply(lambda y: laid(y, layout), start) for x in more}
    assert_same(case.results(given, **more), expected, layout)
    assert {x: y.tobytes() for x, y in given.items()} == before


@EACH
@pytest.mark.parametrize(
    ("lead", "n", "d", "m"),
    [
        ((), 700, 40, 70),
        ((), 60, 8, 300),
        ((), 300, 16, 400),
        ((), 40, 500, 33),
        ((3,), 300, 20, 33),
        ((13,), 9, 5, 6),
    ],
)
def test_threads(case, threads, lead, n, d, m):
    operands = case.operands(lead, n, d=d, m=m, dtype="float32")
    threads(1)
    expected = case.results(operands)
    for count in (2, 3, 8):
        threads(count)
        assert_same(case.results(operands), expected, f"{count} threads")


@EACH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_position_in_the_batch(case, dtype):
    """A head among others has the bits that it has alone."""
    operands = case.operands((2, 3), 37, d=6, m=5, dtype=dtype)
    results = case.results(operands)
    own = {x: y if x in SHARED else y[1, 2] for x, y in operands.items()}
    alone = case.results(own)
    for x, y in zip(results, alone, strict=True):
        if x.ndim == y.ndim + 2:
            np.testing.assert_array_equal(x[1, 2], y)


@EACH
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_head(case, value):
    """Every operand of one head holds it; the results of the others have the same bits."""
    operands = case.operands((4,), 20)
    expected = case.results(operands)
    for name in (x for x in operands if x not in SHARED):
        wild = operands[name].copy()
        wild[1] = value
        for x, y in zip(case.results(operands | {name: wild}), expected, strict=True):
            if x.shape[:1] == (4,):
                np.testing.assert_array_equal(x[[0, 2, 3]], y[[0, 2, 3]], err_msg=name)


CAUSAL = [x for x in ALL if x.held or x.options.get("causal")]


@pytest.mark.parametrize("case", CAUSAL, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_later_tokens(case, value, dtype):
    """Whatever they hold, the outputs before them have the same bits."""
    n = 70
    operands = case.operands((), n, dtype=dtype)
    expected = case.call(operands)
    for name, letters in case.letters.items():
        if letters[0] not in "ns":
            continue
        for t in (0, 15, 16, 33, n - 1):
            wild = operands[name].copy()
            wild[n - 1 - t if case.reverse else t] = value
            o = case.call(operands | {name: wild})
            kept = slice(n - t, None) if case.reverse else slice(t)
            np.testing.assert_array_equal(o[kept], expected[kept], err_msg=f"{name} {t}")


@HELD
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_poison_stays(case, value):
    """Where it leaves the twin's output as it was, it changes no bit; a NaN is never lost."""
    operands = case.operands((), 70, d=5, m=17)
    clean, twin_clean = case.call(operands), case.call(operands, reference)
    for name, letters in case.letters.items():
        if letters[0] not in "ns":
            continue
        for t in (0, 4, 15, 16, 33, 69):
            bad = operands | {name: operands[name].copy()}
            bad[name][t] = value
            o, twin = case.call(bad), case.call(bad, reference)
            unmoved = twin == twin_clean
            token = name in ("q", "k", "v", "x", "B", "C", "z", "b", "beta", "erase")
            if not token or case.name == "wkv":  # it may say where chunks begin, and their scale
                unmoved[: t + 1] &= not case.reverse
                unmoved[t:] &= case.reverse
            np.testing.assert_array_equal(o[unmoved], clean[unmoved], err_msg=f"{name} {t}")
            if np.isnan(value):
                assert not np.isfinite(o[np.isnan(twin)]).any(), f"{name} {t}"


@EACH
def test_out_may_overlap_an_operand(case):
    operands = case.operands((2,), 70, d=6, m=6)
    expected = case.call(operands)
    for name in case.letters:
        given = {x: y.copy() for x, y in operands.items()}
        if given[name].size < expected.size:
            continue
        out = given[name].reshape(-1)[: expected.size].reshape(expected.shape)
        assert case.call(given, out=out) is out
        np.testing.assert_array_equal(out, expected, err_msg=name)


@EACH
@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x not in ("byte_swapped", "read_only")])
def test_out_of_any_layout(case, layout):
    """What lies around it stays as it was."""
    operands = case.operands((2, 3), 20)
    expected = case.call(operands)
    out = LAYOUTS[layout](np.zeros_like(expected))
    memory = out
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    before = memory.copy()
    assert case.call(operands, out=out) is out
    np.testing.assert_array_equal(out, expected)
    out[...] = 0
    assert memory.tobytes() == before.tobytes()


@HELD
@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x not in ("byte_swapped", "read_only")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layouts_of_a_step(case, layout, dtype):
    """Of its operands and of the state, which may be updated in place."""
    operands = case.operands((2, 3), 1, dtype=dtype)
    start = case.state((2, 3), dtype=dtype)
    o, state = case.one_step(operands, 0, start)
    given = {x: laid(y, layout) for x, y in operands.items()}
    moved = apply(lambda x: laid(x, layout), start)
    before = [x.copy() for x in flat(moved)]
    assert_same(case.one_step(given, 0, moved), (o, state))
    assert_same(flat(moved), before)
    got, after = case.one_step(given, 0, moved, in_place=True)
    assert all(x is y for x, y in zip(flat(after), flat(moved), strict=True))
    assert_same((got, after), (o, state))


@pytest.mark.parametrize("case", first_of(FIRST), ids=str)
def test_threads_of_steps(case, threads):
    operands, start = case.operands((300,), 1, d=33, m=40), case.state((300,), d=33, m=40)
    threads(1)
    expected = case.one_step(operands, 0, start)
    for count in (2, 3):
        threads(count)
        assert_same(case.one_step(operands, 0, start), expected)
