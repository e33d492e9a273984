"""float16 and bfloat16: the float32 result, rounded once; states in float32."""

import numpy as np
import pytest
from states import assert_same, tokens

import linattn
from linattn import State
from linattn._core import settings

ml_dtypes = pytest.importorskip("ml_dtypes")
HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
halves = pytest.mark.parametrize("half", HALVES, ids=str)


def patterns(half):
    """Every bit pattern there is."""
    return np.arange(2**16, dtype="u2").view(half)


@halves
def test_every_number_comes_through(isa, half):
    """o_i = v_i for a single token of weight 1: exact, whatever the number; -0 becomes 0."""
    values = patterns(half)
    ones = np.ones((2**10, 1, 1), half)
    nan = np.isnan(values.astype("f4"))
    for name in settings.available_isas():
        isa(name)
        for width in (64, 1):
            v = values.reshape(-1, 1, width)
            one = np.broadcast_to(ones[:1], (len(v), 1, 1))
            o = linattn.causal(one, one, v, feature_map="identity", normalize=False).ravel()
            assert o.dtype == half
            zero = values.view("u2") == 0x8000
            np.testing.assert_array_equal(np.isnan(o.astype("f4")), nan)
            same = ~nan & ~zero
            np.testing.assert_array_equal(o.view("u2")[same], values.view("u2")[same])
            assert o[zero].astype("f4") == 0


@halves
def test_rounding(isa, half):
    """Ties to even, overflow to inf, subnormals: as a cast from float32 rounds."""
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, 40_000, dtype="u8").astype("u4")
    info = ml_dtypes.finfo(half)
    edges = np.array([info.max, info.tiny, info.smallest_subnormal], "f4")
    every = patterns(half).astype("f4")
    with np.errstate(all="ignore"):
        near = np.multiply.outer(edges, np.linspace(0, 4, 257, dtype="f4")).ravel()
        x = np.concatenate([bits.view("f4"), near, -near, every, (every[:-1] + every[1:]) / 2])
        x = np.concatenate(
            [np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))]
        )
        x = x[np.isfinite(x)]
        expected = x.astype(half).astype("f4")
    # The state holds any float32, and reading it with a query of 1 rounds it to 16 bits.
    one, zero = np.ones((len(x), 1), half), np.zeros((len(x), 1), half)
    for name in settings.available_isas():
        isa(name)
        o, _ = linattn.step(
            one, zero, zero, State(x[:, None, None]), feature_map="identity", normalize=False
        )
        np.testing.assert_array_equal(o[:, 0].astype("f4"), expected)


MIXED = [  # operands, result
    ("float16", "float32", "float32", "float32"),
    ("bfloat16", "float32", "bfloat16", "float32"),
    ("bfloat16", "float16", "float16", "float32"),
    ("bfloat16", "float64", "bfloat16", "float64"),
    ("float16", "int8", "float16", "float16"),
    ("float16", "int16", "float16", "float32"),
    ("float16", "int64", "float16", "float64"),
    ("bfloat16", "int16", "bfloat16", "float32"),
]


@pytest.mark.parametrize(("a", "b", "c", "expected"), MIXED)
def test_mixed(a, b, c, expected):
    operands = tokens((3, 21, 6, 19))
    operands = [
        np.rint(2 * x).astype(np.dtype(t)) for x, t in zip(operands, (a, b, c), strict=True)
    ]
    wide = [x.astype(expected) for x in operands]
    for name in ("causal", "noncausal"):
        o = getattr(linattn, name)(*operands)
        assert o.dtype == expected
        assert_same(o, getattr(linattn, name)(*wide))
    grads = linattn.causal_backward(*operands, operands[2])
    assert_same(grads, linattn.causal_backward(*wide, wide[2]))
    result = linattn.causal(*operands, return_state=True)
    assert_same(result, linattn.causal(*wide, return_state=True))
    result = linattn.step(*(x[:, 0] for x in operands), result[1])
    assert_same(result[0], linattn.step(*(x[:, 0] for x in wide), linattn.causal(
        *wide, return_state=True)[1])[0])  # fmt: skip


SMALL = ["int8", "uint8", "bool", "int16", "uint16", "int32", "int64"]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("other", [None, "float16", "bfloat16", "float32"])
def test_integers(dtype, other):
    """One result dtype whatever the path: plain, with a state, with lengths, packed, into out."""
    operands = [np.rint(abs(x)).astype(dtype) for x in tokens((3, 21, 6, 19))]
    if other is not None:
        operands[0] = operands[0].astype(np.dtype(other))
    o = linattn.causal(*operands)
    with_state, end = linattn.causal(*operands, return_state=True)
    assert_same(with_state, o)
    assert_same(linattn.causal(*operands, key_lengths=21), o)
    assert_same(linattn.causal(*operands, cu_seqlens=[0, 21]), o)
    assert_same(linattn.causal(*operands, out=np.empty_like(o)), o)
    assert linattn.noncausal(*operands).dtype == o.dtype
    assert linattn.noncausal(*operands, key_lengths=21).dtype == o.dtype
    grads = linattn.causal_backward(*operands, operands[2])
    also = linattn.causal_backward(*operands, operands[2], grad_state=end)
    assert {x.dtype for x in (*grads, *also[:3])} == {o.dtype}
    wide = [x.astype(o.dtype) for x in operands]
    assert_same(o, linattn.causal(*wide))
    step, expected = (linattn.step(*(x[:, 0] for x in y), end) for y in (operands, wide))
    assert_same(step, expected)


def test_float16_is_a_type_of_every_gufunc():
    for name in linattn.ufuncs.__all__:
        f = getattr(linattn.ufuncs, name)
        assert any(types[0] == "e" for types in f.types), name


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None  # an import of it fails
import linattn, numpy as np
x = np.random.default_rng(0).standard_normal((3, 40, 16))
for dtype in ("float16", "float32", "float64"):
    y = x.astype(dtype)
    o, state = linattn.causal(y, y, y, return_state=True)
    assert o.dtype == dtype
    linattn.causal_backward(y, y, y, y, grad_state=state)
    linattn.step(y[:, 0], y[:, 0], y[:, 0], state, in_place=True)
print(linattn.noncausal(y, y, y, key_lengths=3).shape)
"""


def test_without_ml_dtypes(interpreter):
    stdout, _ = interpreter(WITHOUT)
    assert stdout.strip() == "(3, 40, 16)"


def test_subnormal_numbers_are_read_in_all_modes(isa):
    """float16 numbers below 2^-14 are no subnormal floats, which PyTorch and JAX may flush to 0."""
    torch = pytest.importorskip("torch")
    v = np.arange(1, 1024, dtype="u2").view("f2")[None]
    one = np.ones((1, 1), "f2")
    for chosen in settings.available_isas():
        isa(chosen)
        if torch.set_flush_denormal(True):
            try:
                o = linattn.causal(one, one, v, feature_map="identity", normalize=False)
            finally:
                torch.set_flush_denormal(False)
            np.testing.assert_array_equal(o, v)
