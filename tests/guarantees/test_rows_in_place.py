"""With products of bfloat16 operands, rows are read in the caller's arrays, or copied."""

import sys

import numpy as np
import pytest
from layouts import LAYOUTS
from states import assert_same, flat

import linattn
from linattn import _linattn
from linattn._core import settings

ml_dtypes = pytest.importorskip("ml_dtypes")
BFLOAT = np.dtype(ml_dtypes.bfloat16)
ISAS = settings.available_isas()
#: An instruction set and a choice of AMX: none, if there is one, or in plain C.
SETS = [
    pytest.param(x, amx, marks=pytest.mark.slow if amx == 2 and x != ISAS[0] else ())
    for x in ISAS
    for amx in (0, 1, 2)
    if amx != 1 or (_linattn.has_amx and x == "x86-64-v4")
]


@pytest.fixture
def products(isa):
    """Select products of bfloat16 operands of a set."""
    before = _linattn.get_amx()

    def select(name, amx):
        isa(name)
        _linattn.set_amx(amx)

    with linattn.products("bfloat16"):
        yield select
    _linattn.set_amx(before)


def at(x, offset, gap=0):
    """x in memory that begins `offset` bytes after a line, with as many after each row."""
    width = x.shape[-1] * x.itemsize + gap
    room = np.full(int(np.prod(x.shape[:-1])) * width + 128 + offset, 0xFF, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    strides = [width * int(np.prod(x.shape[i + 1 : -1])) for i in range(x.ndim - 1)]
    y = np.ndarray(x.shape, x.dtype, room, begin, (*strides, x.itemsize))
    y[...] = x
    return y


PLACES = {
    "at a line": lambda x: at(x, 0),
    "between": lambda x: at(x, 16),
    "at four bytes": lambda x: at(x, 4),
    "at two bytes": lambda x: at(x, 2),
    "rows at lines": lambda x: at(x, 0, 64),
    "rows at two bytes": lambda x: at(x, 0, 2),
    "last row first": lambda x: at(x[..., ::-1, :], 0)[..., ::-1, :],
    **{x: LAYOUTS[x] for x in ("token_major", "features_first", "unaligned")},
}


def calls(d, m, n=150):
    """Functions of q, k and v."""
    rng = np.random.default_rng([d, m])
    g = -rng.exponential(0.1, n).astype("f4")
    g[[20, 71]] = -np.inf, -1e3
    w, skip = rng.uniform(0.5, 1, n).astype(BFLOAT), rng.standard_normal(m).astype(BFLOAT)
    plain = {"feature_map": "identity", "normalize": False}
    for more in {}, {"key_lengths": np.array(101)}, {"cu_seqlens": np.array([0, 64, 84, n])}:
        yield lambda q, k, v, more=more: linattn.causal(q, k, v, **plain, **more)
        yield lambda q, k, v, more=more: linattn.causal(q, k, v, **more)
        yield lambda q, k, v, more=more: linattn.gated(q, k, v, g, scale=0.5, **more)
        yield lambda q, k, v, more=more: linattn.ssd(q, k, v, g, w, D=skip, **more)
        yield lambda q, k, v, more=more: linattn.gated_delta(q, k, v, g, w, **more)
    yield lambda q, k, v: linattn.causal(q, k, v, block=40, **plain)
    yield lambda q, k, v: linattn.gated(q, k, v, g, block=40)


def draw(d, m, n=150):
    rng = np.random.default_rng([d, m, n])
    q, k = (rng.standard_normal((n, d)) / np.sqrt(d) for _ in range(2))
    return [x.astype(BFLOAT) for x in (q, k, rng.standard_normal((n, m)))]


@pytest.mark.parametrize("name, amx", SETS)
@pytest.mark.parametrize("d, m", [(64, 64), (32, 96), (128, 16), (40, 64), (64, 33)])
def test_same_bits_in_all_places(products, name, amx, d, m):
    products(name, amx)
    operands = draw(d, m)
    for call in calls(d, m):
        expected = flat(call(*map(PLACES["at two bytes"], operands)))
        for place, move in PLACES.items():
            assert_same(flat(call(*map(move, operands))), expected, place)


@pytest.mark.parametrize("name, amx", SETS)
def test_values_that_are_not_finite(products, name, amx):
    """Wherever they are read, they reach the same rows, and no earlier ones."""
    products(name, amx)
    for row, number in (0, np.inf), (63, np.nan), (64, -np.inf), (149, np.nan):
        for which in range(3):
            operands = draw(64, 64)
            operands[which][row, 7] = number
            for call in calls(64, 64):
                with np.errstate(all="ignore"):
                    expected = flat(call(*map(PLACES["at two bytes"], operands)))
                    assert_same(flat(call(*map(PLACES["at a line"], operands))), expected)


@pytest.mark.parametrize("name, amx", SETS)
@pytest.mark.parametrize("d", [33, 64])
def test_subnormal_numbers(products, name, amx, d):
    """Instructions convert them to zeros, and the floats between may not."""
    products(name, amx)
    g = np.where(np.arange(150) % 40 == 1, 50, 0).astype("f4")
    for which in range(3):
        operands = [x.astype("f4") for x in draw(d, 64)]
        operands[which] *= 1e-39
        operands[which - 1] *= 1e15
        operands = [x.astype(BFLOAT) for x in operands]
        for call in (lambda q, k, v: linattn.gated(q, k, v, g), *calls(d, 64)):
            expected = flat(call(*map(PLACES["at two bytes"], operands)))
            for place in "at a line", "features_first", "last row first":
                assert_same(flat(call(*map(PLACES[place], operands))), expected, place)


@pytest.mark.parametrize("name, amx", SETS)
@pytest.mark.parametrize("d", [1, 5, 33, 40, 64])
def test_a_decay_that_overflows(products, name, amx, d):
    """It makes rows infinite, not NaN: nothing past a row's last number is multiplied by it."""
    products(name, amx)
    x, g = np.ones((3, d), BFLOAT), np.array([0, 100, 0], "f4")
    with np.errstate(all="ignore"):
        found = linattn.gated(x, x, x, g).astype("f4")
    np.testing.assert_array_equal(found, np.outer([d, np.inf, np.inf], np.ones(d)))


@pytest.mark.unsanitized
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects pages as Linux does")
@pytest.mark.parametrize("name, amx", SETS)
@pytest.mark.parametrize("n", [5, 36, 64, 148, 150])
def test_no_row_past_the_last_one_is_read(products, name, amx, n):
    """Arrays begin or end at a page that must not be accessed."""
    from guarded import guarded

    products(name, amx)
    operands = draw(64, 64, n)
    g = np.full(n, -0.1, "f4")
    for call in (
        lambda q, k, v: linattn.causal(q, k, v, feature_map="identity", normalize=False),
        lambda q, k, v: linattn.gated(q, k, v, g),
    ):
        expected = call(*operands)
        for at_end in (False, True):
            placed = [guarded(x, at_end, "by rows", []) for x in operands]
            assert call(*placed).tobytes() == expected.tobytes()
