"""What changes no bit of a convolution: steps, layouts, large results, threads."""

from itertools import product

import numpy as np
import pytest
from conv_cases import ACTIVATIONS, DTYPES, make
from isas import ISAS
from layouts import LAYOUTS, features_first

import linattn


def spread(x):
    """x with gaps between the numbers of its last axis."""
    return np.repeat(x, 2, -1)[..., ::2]


#: Layouts of a token, of filters and of a state.
EITHER = np.array, features_first, spread
WAYS = (*product((spread,), EITHER, EITHER), (np.array, features_first, features_first))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_has_the_bits_of_one_token(isa, name, dtype):
    """Of any layout, in place and not, of vectors and tiles of channels, whole or not."""
    isa(name)
    for w, c, activation in product((1, 2, 3, 4, 5), (3, 16, 53, 150), ACTIVATIONS):
        x, weight, b, _, state, _ = make(1, c, w, dtype=dtype)
        options = {"activation": activation}
        for bias in (b, None):
            o, end = linattn.causal_conv1d(
                x, weight, bias, initial_state=state, return_state=True, **options
            )
            for (of_token, of_weight, of_state), in_place in product(WAYS, (False, True)):
                s = of_state(state)
                y, after = linattn.causal_conv1d_step(
                    of_token(x[:, 0]), of_weight(weight), s, bias, in_place=in_place, **options
                )
                np.testing.assert_array_equal(y, o[:, 0])
                np.testing.assert_array_equal(after, end)
                assert after.dtype == end.dtype and (after is s) == in_place


@pytest.mark.parametrize(("cols", "dtype"), [(520, "float32"), (528, "float32"), (520, "float64")])
def test_large_results_have_the_same_bits(cols, dtype):
    """16 MiB and more go past the cache, by whole lines where all rows have the same ones."""
    n, line = 9001, 64 // np.dtype(dtype).itemsize
    x, weight, b, *_ = make(n, cols, 4, lead=(), dtype=dtype)
    whole = linattn.causal_conv1d(x, weight, b, activation="silu")
    for rows in (slice(100), slice(4000, 4100), slice(8990, None)):
        part = slice(max(rows.start or 0, 3) - 3, rows.stop)
        y = linattn.causal_conv1d(x[part], weight, b, activation="silu")
        np.testing.assert_array_equal(y[len(y) - len(whole[rows]) :], whole[rows])
    memory = np.empty(n * cols + 64, dtype)
    aligned = -memory.ctypes.data // memory.itemsize % line
    for offset in (0, 3, line // 4, line // 2, 3 * line // 4):
        start = aligned + offset
        out = memory[start : start + n * cols]
        for given, room in (
            (x, out.reshape(n, cols)),
            (features_first(x), out.reshape(cols, n).T),
        ):
            memory[:] = 7
            linattn.causal_conv1d(given, weight, b, activation="silu", out=room)
            np.testing.assert_array_equal(room, whole)
            assert (memory[:start] == 7).all() and (memory[start + n * cols :] == 7).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *DTYPES])
def test_orders_of_axes_change_no_bit(dtype):
    """Tokens or channels adjacent in memory, in x and in the result; around tiles and panels."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    for size in ((63, 40, 4), (64, 5, 1), (145, 33, 9), (300, 17, 4), (70, 530, 3), (9, 129, 4)):
        x, weight, b, _, state, _ = make(*size, dtype=dtype)
        state = state.astype(np.promote_types(dtype, np.float32))
        options = {"activation": "silu", "initial_state": state}
        expected = linattn.causal_conv1d(x, weight, b, **options)
        for x_axes, out_axes, offset in product((1, 2), (1, 2), (0, 3)):
            turned = features_first(x) if x_axes == 2 else x
            memory = np.empty(x.size + offset, dtype)[offset:]
            out = memory.reshape(x.swapaxes(-1, -out_axes).shape).swapaxes(-1, -out_axes)
            linattn.causal_conv1d(turned, weight, b, out=out, **options)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *DTYPES])
def test_gradients_in_any_order_of_axes(poison, dtype):
    """Of short sequences among long ones, too."""
    poison(0xFF)  # a call that needs more than was measured is an error, too
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    wide = np.promote_types(dtype, np.float32)
    turned = [np.array, LAYOUTS["features_first"], LAYOUTS["features_first_backwards"]]
    for n, c, w in ((9, 129, 4), (300, 530, 3), (145, 33, 9), (300, 17, 1)):
        x, weight, b, g, *_ = make(n, c, w, lead=(), dtype=dtype)
        bounds = [0, 1, 1, n // 2, n]
        state, grad = np.random.default_rng(0).standard_normal((2, 4, c, w - 1))
        options = {"activation": "silu", "cu_seqlens": bounds}
        options |= {"initial_state": state.astype(wide), "grad_state": grad.astype(wide)}
        expected = linattn.causal_conv1d_backward(x, weight, g, b, **options)
        for of_x, of_g in product(turned, turned):
            found = linattn.causal_conv1d_backward(of_x(x), weight, of_g(g), b, **options)
            for y, z in zip(found, expected, strict=True):
                np.testing.assert_array_equal(y, z, strict=True)


def test_nan_stays_nan_in_bfloat16():
    """Of any payload: rounding must not carry into the sign."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    nan = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    state = np.ones((40, 1), np.float32)
    state[[3, 17, 39], 0] = nan
    for n in (1, 20):
        x, weight = np.ones((n, 40), dtype), np.ones((40, 2), dtype)
        o = linattn.causal_conv1d(x, weight, initial_state=state)
        np.testing.assert_array_equal(np.isnan(o[0]), np.isnan(state[:, 0]))
        assert np.isfinite(o[1:].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("n", "c"), [(2000, 80), (90, 1700), (300, 600)])
def test_shares_of_threads(threads, dtype, lead, packed, n, c):
    """Threads share out tokens, channels, or both; no bit depends on it."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*lead, n, c)).astype(dtype)
    weight = rng.standard_normal((c, 4)).astype(dtype)
    bounds = {"cu_seqlens": [0, n // 2, n, n]} if packed else {}
    state = rng.standard_normal((*lead, *(3,) * packed, c, 3)).astype(np.float32)
    bounds |= {"initial_state": state, "return_state": True, "activation": "silu"}
    found = []
    for count, tokens in product((1, 2, 7, 16), (x, features_first(x))):
        threads(count)
        found.append(linattn.causal_conv1d(tokens, weight, **bounds))
    for o, after in found[1:]:
        np.testing.assert_array_equal(o, found[0][0])
        np.testing.assert_array_equal(after, found[0][1])
