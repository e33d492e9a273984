"""The convolution in parts: splits, packed sequences, steps; and what changes no bit of it."""

from itertools import product

import numpy as np
import pytest
from bounds import close, roundings
from conv_cases import ACTIVATIONS, DTYPES, SIZES, check_backward, check_forward, make, wide
from isas import ISAS
from layouts import LAYOUTS

import linattn
from linattn.reference import conv as ref


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_split(activation, dtype):
    """A sequence cut anywhere continues from its state, to the bit, and so do its gradients."""
    for w, n in ((4, 37), (1, 5), (9, 20)):
        x, weight, b, g, state, last = make(n, 21, w, dtype=dtype)
        options = {"activation": activation}
        whole, end = linattn.causal_conv1d(
            x, weight, b, initial_state=state, return_state=True, **options
        )
        grads = linattn.causal_conv1d_backward(
            x, weight, g, b, initial_state=state, grad_state=last, **options
        )
        for cut in range(n + 1):
            o, middle = linattn.causal_conv1d(
                x[:, :cut], weight, b, initial_state=state, return_state=True, **options
            )
            rest, final = linattn.causal_conv1d(
                x[:, cut:], weight, b, initial_state=middle, return_state=True, **options
            )
            np.testing.assert_array_equal(np.concatenate((o, rest), 1), whole)
            np.testing.assert_array_equal(final, end)
            second = linattn.causal_conv1d_backward(
                x[:, cut:], weight, g[:, cut:], b, initial_state=middle, grad_state=last, **options
            )
            first = linattn.causal_conv1d_backward(
                x[:, :cut], weight, g[:, :cut], b, initial_state=state, grad_state=second[3],
                **options,
            )  # fmt: skip
            joined = (
                np.concatenate((first[0], second[0]), 1), first[1] + second[1],
                first[2] + second[2], first[3],
            )  # fmt: skip
            for y, z in zip(joined, grads, strict=True):
                close(y, z, atol=roundings(20 * (w + 8), z))


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed(dtype):
    """Packed sequences are so many calls, to the bit; empty ones hand their state through."""
    cuts = [0, 7, 7, 8, 40, 61]
    x, weight, b, g, *_ = make(61, 35, 4, dtype=dtype)
    rng = np.random.default_rng(3)
    states, lasts = (rng.standard_normal((2, 5, 35, 3)).astype(dtype) for _ in range(2))
    options = {"activation": "silu"}
    o, ends = linattn.causal_conv1d(
        x, weight, b, cu_seqlens=cuts, initial_state=states, return_state=True, **options
    )
    dx, dweight, dbias, dstates = linattn.causal_conv1d_backward(
        x, weight, g, b, cu_seqlens=cuts, initial_state=states, grad_state=lasts, **options
    )
    sums = [0, 0]
    for r in range(5):
        part = slice(cuts[r], cuts[r + 1])
        one, end = linattn.causal_conv1d(
            x[:, part], weight, b, initial_state=states[:, r], return_state=True, **options
        )
        np.testing.assert_array_equal(o[:, part], one)
        np.testing.assert_array_equal(ends[:, r], end)
        y, *more, s = linattn.causal_conv1d_backward(
            x[:, part], weight, g[:, part], b, initial_state=states[:, r],
            grad_state=lasts[:, r], **options,
        )  # fmt: skip
        np.testing.assert_array_equal(dx[:, part], y)
        np.testing.assert_array_equal(dstates[:, r], s)
        sums = [a.astype(np.float64) + z for a, z in zip(map(np.asarray, sums), more, strict=True)]
    for y, z in zip((dweight, dbias), sums, strict=True):
        close(y, z, atol=roundings(16, y))
    without = linattn.causal_conv1d(x, weight, b, cu_seqlens=cuts, **options)
    close(without[:, 40:], linattn.causal_conv1d(x[:, 40:], weight, b, **options), atol=0)
    dx, dweight = linattn.causal_conv1d_backward(x, weight, g, cu_seqlens=cuts)
    expected = ref.causal_conv1d_backward(*wide(x, weight, g), cu_seqlens=cuts)
    for y, z in zip((dx, dweight), expected, strict=True):
        close(y, z.astype(dtype), atol=roundings(64, y))


def test_steps_are_the_sequence():
    for dtype, w in product(("float16", "float32", "float64"), (1, 2, 4, 11)):
        x, weight, b, *_ = make(9, 20, w, lead=(2, 3), dtype=dtype)
        whole, end = linattn.causal_conv1d(x, weight, b, activation="silu", return_state=True)
        kept = np.zeros_like(end)
        state = np.zeros_like(end)
        for t in range(9):
            before = state
            o, state = linattn.causal_conv1d_step(x[..., t, :], weight, state, b, activation="silu")
            np.testing.assert_array_equal(o, whole[..., t, :])
            assert state is not before
            o, same = linattn.causal_conv1d_step(
                x[..., t, :], weight, kept, b, activation="silu", in_place=True
            )
            assert same is kept
            np.testing.assert_array_equal(o, whole[..., t, :])
            np.testing.assert_array_equal(kept, state)
        np.testing.assert_array_equal(state, end)


def spread(x, gap):
    """x with gaps between the numbers of its last axis."""
    out = np.zeros((*x.shape[:-1], x.shape[-1] * gap), x.dtype)[..., ::gap]
    out[...] = x
    return out


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_has_the_bits_of_one_token(isa, name, dtype):
    """Of filters and states of any layout, in place and not, whole vectors of channels or not."""
    isa(name)
    layouts = (np.array, lambda x: np.array(x.swapaxes(-1, -2)).swapaxes(-1, -2),
               lambda x: spread(x, 2))  # fmt: skip
    for w, c, activation in product((1, 2, 3, 4, 5), (3, 16, 53), ACTIVATIONS):
        x, weight, b, _, state, _ = make(1, c, w, lead=(2,), dtype=dtype)
        o, end = linattn.causal_conv1d(
            x, weight, b, activation=activation, initial_state=state, return_state=True
        )
        for of_weight, of_state in product(layouts, layouts):
            s = of_state(state)
            token, taps = spread(x[:, 0], 2), of_weight(weight)
            for in_place in (False, True):
                y, after = linattn.causal_conv1d_step(
                    token, taps, s, b, activation=activation, in_place=in_place
                )
                np.testing.assert_array_equal(y, o[:, 0])
                np.testing.assert_array_equal(after, end)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets(isa, name, dtype):
    isa(name)
    for size, activation in product(SIZES, ACTIVATIONS):
        check_forward(linattn, *size, dtype, activation)
        check_backward(linattn, *size, dtype, activation)


def everything(x, weight, b, g, state, last):
    o, s = linattn.causal_conv1d(
        x, weight, b, activation="silu", initial_state=state, return_state=True
    )
    return (
        o,
        s,
        *linattn.causal_conv1d_backward(
            x, weight, g, b, activation="silu", initial_state=state, grad_state=last
        ),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(threads, dtype):
    for size in ((40000, 33, 4), (300, 700, 4), (2000, 64, 9)):
        operands = make(*size, lead=(), dtype=dtype)
        threads(1)
        expected = everything(*operands)
        cuts = [0, size[0] // 2, size[0]]
        packed = linattn.causal_conv1d(*operands[:3], cu_seqlens=cuts)
        for count in (2, 3, 7):
            threads(count)
            for y, z in zip(everything(*operands), expected, strict=True):
                np.testing.assert_array_equal(y, z)
            again = linattn.causal_conv1d(*operands[:3], cu_seqlens=cuts)
            np.testing.assert_array_equal(again, packed)


def test_large_results_have_the_same_bits():
    """16 MiB and more go past the cache, by whole vectors where these are aligned."""
    x, weight, b, *_ = make(9001, 520, 4, lead=(), dtype="float32")
    whole = linattn.causal_conv1d(x, weight, b, activation="silu")
    for rows in (slice(100), slice(4000, 4100), slice(8990, None)):
        part = slice(max(rows.start or 0, 3) - 3, rows.stop)
        y = linattn.causal_conv1d(x[part], weight, b, activation="silu")
        np.testing.assert_array_equal(y[len(y) - len(whole[rows]) :], whole[rows])
    out = np.empty(9001 * 520 + 3, np.float32)[3:].reshape(9001, 520)
    linattn.causal_conv1d(x, weight, b, activation="silu", out=out)
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_change_no_bit(layout):
    for size in ((37, 33, 4), (20, 64, 9)):
        operands = make(*size, lead=(2, 3), dtype="float32")
        expected = everything(*operands)
        native = layout != "byte_swapped"  # states have to be of the very dtype
        changed = [
            LAYOUTS[layout](y) if y.ndim > 1 and (i < 4 or native) else y
            for i, y in enumerate(operands)
        ]
        for y, z in zip(everything(*changed), expected, strict=True):
            np.testing.assert_array_equal(y, z)


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
            turned = np.ascontiguousarray(x.swapaxes(-1, -x_axes)).swapaxes(-1, -x_axes)
            memory = np.empty(x.size + offset, dtype)[offset:]
            out = memory.reshape(x.swapaxes(-1, -out_axes).shape).swapaxes(-1, -out_axes)
            linattn.causal_conv1d(turned, weight, b, out=out, **options)
            np.testing.assert_array_equal(out, expected)


def test_large_results_of_adjacent_tokens_have_the_same_bits():
    x, weight, b, *_ = make(9001, 520, 4, lead=(), dtype="float32")
    expected = linattn.causal_conv1d(x, weight, b, activation="silu")
    for offset in (0, 3):
        out = np.empty(9001 * 520 + offset, np.float32)[offset:].reshape(520, 9001).T
        linattn.causal_conv1d(np.asfortranarray(x), weight, b, activation="silu", out=out)
        np.testing.assert_array_equal(out, expected)


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


def test_out_may_overlap_an_operand():
    x, weight, b, *_ = make(50, 40, 4)
    expected = linattn.causal_conv1d(x, weight, b, activation="silu")
    y = x.copy()
    assert linattn.causal_conv1d(y, weight, b, activation="silu", out=y) is y
    np.testing.assert_array_equal(y, expected)
