"""Steps on states that begin anywhere in a line, or lie by columns: the same bits, and nothing
written beside."""

import numpy as np
import pytest

import linattn
from linattn import State

LINE = 64  #: bytes
HEADS = 3

#: Widths of the values: one tile of columns or several, and rows that are no whole vectors.
SIZES = [(64, 64), (1, 16), (5, 32), (130, 128), (65, 208), (7, 320), (66, 24), (70, 9), (0, 32)]
NAMES = [
    "step", "delta_step", "delta_step by channel", "gated_step", "gated_step by channel",
    "gated_step with a bonus", "gated_delta_step", "gated_delta_step by channel", "dplr_step",
]  # fmt: skip


def operands(name, d, m, dtype):
    """Those of a step before the state, and its options."""
    rng = np.random.default_rng(0)

    def rows(*shape):
        return rng.standard_normal(shape).astype(dtype)

    q, k, v = rows(HEADS, d), rows(HEADS, d) / max(d, 1) ** 0.5, rows(HEADS, m)
    k = k.astype(dtype)
    g, gk = -np.abs(rows(HEADS)), -np.abs(rows(HEADS, d))
    beta, wide_beta = np.abs(rows(HEADS)), np.abs(rows(HEADS, m))
    return {
        "step": ((q, k, v), {}),
        "delta_step": ((q, k, v, beta), {}),
        "delta_step by channel": ((q, k, v, wide_beta), {}),
        "gated_step": ((q, k, v, g), {}),
        "gated_step by channel": ((q, k, v, gk), {}),
        "gated_step with a bonus": ((q, k, v, gk), {"bonus": rows(HEADS, d)}),
        "gated_delta_step": ((q, k, v, g, beta), {}),
        "gated_delta_step by channel": ((q, k, v, gk, wide_beta), {"erase": rows(HEADS, d)}),
        "dplr_step": ((q, k, v, rows(HEADS, d), -k, gk), {}),
    }[name]


def placed(x, offset):
    """A copy of x that begins `offset` bytes past a line, and the bytes around it."""
    memory = np.full(x.nbytes + 4 * LINE, 0x55, np.uint8)
    start = LINE + -memory.ctypes.data % LINE + offset
    y = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y, (memory[:start], memory[start + x.nbytes :])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("d", "m"), SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_no_bit_depends_on_where_a_state_begins(name, d, m, dtype):
    step = getattr(linattn, name.split()[0])
    args, options = operands(name, d, m, dtype)
    rng = np.random.default_rng(1)
    s = rng.standard_normal((HEADS, d, m)).astype(dtype)
    z = np.full((HEADS, d), 9, dtype) if name == "step" else None
    expected, after = step(*args, State(placed(s, 0)[0], z), **options)
    for offset in range(0, LINE, np.dtype(dtype).itemsize):
        place, around = placed(s, offset)
        for in_place in (False, True):
            start = State(place, None if z is None else z.copy())
            o, state = step(*args, start, in_place=in_place, **options)
            np.testing.assert_array_equal(o, expected)
            np.testing.assert_array_equal(state.s, after.s)
            assert in_place or np.array_equal(place, s)
        assert all((x == 0x55).all() for x in around)


@pytest.mark.parametrize("offset", [0, 16, 36])
@pytest.mark.parametrize("name", ["gated_step", "gated_delta_step"])
def test_a_reset_clears_infinite_states_wherever_they_begin(name, offset):
    (q, k, v, g, *beta), _ = operands(name, 64, 64, np.float32)
    g[1] = -np.inf
    s, _ = placed(np.ones((HEADS, 64, 64), np.float32), offset)
    s[1] = np.inf
    o, state = getattr(linattn, name)(q, k, v, g, *beta, State(s), in_place=True)
    assert np.isfinite(o).all()
    assert np.isfinite(state.s).all()


@pytest.mark.parametrize("name", ["step", "gated_step", "delta_step", "gated_delta_step"])
def test_a_nan_stays_in_its_column(name):
    """Vectors hold the columns of two rows."""
    args, _ = operands(name, 64, 64, np.float32)
    for column in (0, 11, 12, 63):
        s, _ = placed(np.ones((HEADS, 64, 64), np.float32), 16)
        s[1, 63, column] = np.nan
        z = np.ones((HEADS, 64), np.float32) if name == "step" else None
        o, state = getattr(linattn, name)(*args, State(s, z), in_place=True)
        wrong = np.isnan(o)
        assert wrong[1, column]
        assert wrong.sum() == 1
        assert set(np.argwhere(np.isnan(state.s))[:, 2]) == {column}


def by_columns(x, gap):
    """A copy of x whose columns are contiguous, `gap` numbers apart, and all of its memory."""
    heads, d, m = x.shape
    memory = np.full((heads, m, d + gap), 7, x.dtype)
    y = memory[..., :d].swapaxes(1, 2)
    y[...] = x
    return y, memory


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("d", "m"), [*SIZES, (128, 64), (2, 3), (16, 16), (64, 33)])
@pytest.mark.parametrize("name", NAMES)
def test_contiguous_columns_change_no_bit(name, d, m, dtype, gap, reset):
    step = getattr(linattn, name.split()[0])
    args, options = operands(name, d, m, dtype)
    s = np.random.default_rng(1).standard_normal((HEADS, d, m)).astype(dtype)
    s.reshape(-1)[::3] = -0.0
    if reset and name.startswith("gated"):
        args[3].reshape(-1)[:: 1 if args[3].ndim == 1 else 2] = -np.inf
        s[:, ::2] = np.inf
    z = np.full((HEADS, d), 9, dtype) if name == "step" else None
    expected, after = step(*args, State(s.copy(), z), **options)
    place, memory = by_columns(s, gap)
    for in_place in (False, True):
        start = State(place, None if z is None else z.copy())
        o, state = step(*args, start, in_place=in_place, **options)
        assert o.tobytes() == expected.tobytes()
        assert state.s.tobytes() == after.s.tobytes()
        assert in_place or np.array_equal(place, s)
    assert (memory[..., d:] == 7).all()
