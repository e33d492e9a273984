"""Steps on states that begin anywhere in a line, or lie by columns: the same bits, and nothing
written beside."""

import numpy as np
import pytest
from slow import each, looped
from states import flat
from table import ATTENTION, apply, same

from linattn import State

LINE = 64  #: bytes
HEADS = 3

#: Widths of the values: one tile of columns or several, and rows that are no whole vectors.
SIZES = [(64, 64), (1, 16), (5, 32), (130, 128), (65, 208), (7, 320), (66, 24), (70, 9), (0, 32)]
EACH = each(ATTENTION)
DTYPES = looped(dtype=[np.float32, np.float64])


def drawn(case, d, m, dtype=np.float32):
    """The operands of a token, and a state."""
    sizes = {"d": d, "m": m, "dtype": dtype}
    return case.operands((HEADS,), 1, **sizes), case.state((HEADS,), **sizes)


def placed(x, offset):
    """A copy of x that begins `offset` bytes past a line, and the bytes around it."""
    memory = np.full(x.nbytes + 4 * LINE, 0x55, np.uint8)
    start = LINE + -memory.ctypes.data % LINE + offset
    y = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y, (memory[:start], memory[start + x.nbytes :])


@EACH
@DTYPES
def test_no_bit_depends_on_where_a_state_begins(case, dtype):
    for d, m in SIZES:
        operands, state = drawn(case, d, m, dtype)
        expected = case.one_step(operands, 0, state._replace(s=placed(state.s, 0)[0]))
        for offset in range(0, LINE, np.dtype(dtype).itemsize):
            place, around = placed(state.s, offset)
            for in_place in (False, True):
                start = apply(np.array, state)._replace(s=place)
                result = case.one_step(operands, 0, start, in_place=in_place)
                assert same(result, expected), (d, m, offset)
                assert in_place or np.array_equal(place, state.s)
            assert all((x == 0x55).all() for x in around), (d, m, offset)


@pytest.mark.parametrize("offset", [0, 16, 36])
@pytest.mark.parametrize(
    "case", [x for x in ATTENTION if x.name in ("gated", "gated_delta")], ids=str
)
def test_a_reset_clears_infinite_states_wherever_they_begin(case, offset):
    operands, _ = drawn(case, 64, 64)
    operands["g"][1] = -np.inf
    s, _ = placed(np.ones((HEADS, 64, 64), np.float32), offset)
    s[1] = np.inf
    o, state = case.one_step(operands, 0, State(s), in_place=True)
    assert np.isfinite(o).all() or "bonus" in case.letters  # which reads what was there
    assert np.isfinite(state.s).all()


@EACH
def test_a_nan_stays_in_its_column(case):
    """Vectors hold the columns of two rows."""
    operands, state = drawn(case, 64, 64)
    for column in (0, 11, 12, 63):
        s, _ = placed(np.ones((HEADS, 64, 64), np.float32), 16)
        s[1, 63, column] = np.nan
        given = apply(np.array, state)._replace(s=s)
        o, after = case.one_step(operands, 0, given, in_place=True)
        wrong = np.isnan(o)
        assert wrong[1, column]
        assert wrong.sum() == 1
        assert set(np.argwhere(np.isnan(after.s))[:, 2]) == {column}


def by_columns(x, gap):
    """A copy of x whose columns are contiguous, `gap` numbers apart, and all of its memory."""
    heads, d, m = x.shape
    memory = np.full((heads, m, d + gap), 7, x.dtype)
    y = memory[..., :d].swapaxes(1, 2)
    y[...] = x
    return y, memory


@EACH
@DTYPES
@looped(reset=[False, True])
def test_contiguous_columns_change_no_bit(case, dtype, reset):
    for d, m in (*SIZES, (128, 64), (2, 3), (16, 16), (64, 33)):
        for gap in (0, 3):
            check_contiguous_columns(case, d, m, dtype, gap, reset)


def check_contiguous_columns(case, d, m, dtype, gap, reset):
    operands, state = drawn(case, d, m, dtype)
    state.s.reshape(-1)[::3] = -0.0
    if reset and case.name.startswith("gated"):
        g = operands["g"]
        g.reshape(-1)[:: 1 if case.letters["g"] == "n" else 2] = -np.inf
        state.s[:, ::2] = np.inf
    expected = flat(case.one_step(operands, 0, apply(np.array, state)))
    place, memory = by_columns(state.s, gap)
    for in_place in (False, True):
        start = apply(np.array, state)._replace(s=place)
        result = flat(case.one_step(operands, 0, start, in_place=in_place))
        assert [x.tobytes() for x in result] == [x.tobytes() for x in expected], (d, m, gap)
        assert in_place or np.array_equal(place, state.s)
    assert (memory[..., d:] == 7).all()
