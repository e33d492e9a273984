"""The delta rule against its twin: sizes, layouts, states, packed sequences, single tokens."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, check_delta, close, roundings
from cases import DELTA_SIZES, DTYPES, MAPS, delta_case, make
from layouts import LAYOUTS

import linattn
from linattn.reference import delta_rule as ref
from linattn.reference import maps

#: Of either side, where two results of the same dtype are compared.
ROUNDINGS = 2 * DELTA_ROUNDINGS
CHANNELS = pytest.mark.parametrize("channels", [False, True])


def assert_close(actual, expected):
    """Gradients, each within the roundings of the largest entry of all."""
    for x, y in zip(actual, expected, strict=True):
        close(x, y, atol=roundings(ROUNDINGS, *expected))


def tokens(operands, begin, end, channels):
    """The operands of tokens [begin, end)."""
    q, k, v, beta, g = operands
    rows = (..., slice(begin, end), slice(None))
    return q[rows], k[rows], v[rows], beta[rows if channels else rows[:-1]], g[rows]


@pytest.mark.parametrize("dtype", DTYPES)
@CHANNELS
def test_sizes(dtype, channels):
    for n, d, m in DELTA_SIZES:
        check_delta(linattn, delta_case(n, d, m, channels=channels, dtype=dtype))


@pytest.mark.parametrize("feature_map", MAPS)
@CHANNELS
def test_maps(feature_map, channels):
    for dtype in DTYPES:
        for n, d, m in [(5, 3, 2), (37, 17, 33), (70, 65, 66)]:
            check_delta(linattn, delta_case(n, d, m, (2,), channels, feature_map, dtype))


def test_map_objects():
    """DPFP, whose features sum to 1, as the paper stabilises the rule; also token by token."""
    phi, twin = linattn.feature_maps.DPFP(nu=2), maps.DPFP(nu=2)
    *operands, g = make(delta_case(40, 6, 5, (2,), dtype="float64"))
    options = {"scale": 0.5, "initial_state": linattn.State(np.ones((2, 24, 5)))}
    o, state = linattn.delta(*operands, feature_map=phi, **options, return_state=True)
    expected = ref.delta(*operands, feature_map=twin, **options)
    close(o, expected, atol=roundings(ROUNDINGS, expected))
    grads = linattn.delta_backward(*operands, g, feature_map=phi, **options)
    wanted = ref.delta_backward(*operands, g, feature_map=twin, **options)
    grads, wanted = (*grads[:4], grads[4].s), (*wanted[:4], wanted[4].s)
    assert_close(grads, wanted)
    q, k, v, beta = operands
    now = options["initial_state"]
    for i in range(40):
        one = (x[:, i] for x in (q, k, v, beta))
        o, now = linattn.delta_step(*one, now, feature_map=phi, scale=0.5)
        close(o, expected[:, i], atol=roundings(ROUNDINGS, expected))
    close(now.s, state.s, atol=roundings(ROUNDINGS, state.s))


@CHANNELS
def test_sixteen_bits(channels):
    """Computed in float32, rounded once: what float32 gives for the same numbers."""
    *operands, g = [x.astype("f2") for x in make(delta_case(70, 16, 24, (2,), channels))]
    single = [x.astype("f4") for x in (*operands, g)]
    o = linattn.delta(*operands)
    np.testing.assert_array_equal(o, linattn.delta(*single[:4]).astype("f2"))
    grads, expected = linattn.delta_backward(*operands, g), linattn.delta_backward(*single)
    for x, y in zip(grads, expected, strict=True):
        np.testing.assert_array_equal(x, y.astype("f2"))


@pytest.mark.parametrize("name", LAYOUTS)
@CHANNELS
def test_layouts(name, channels):
    """No bit depends on strides, alignment or byte order."""
    for dtype in DTYPES:
        *operands, g = make(delta_case(37, 17, 21, (2, 3), channels, dtype=dtype))
        moved = [LAYOUTS[name](x) for x in operands]
        expected = linattn.delta(*operands)
        np.testing.assert_array_equal(linattn.delta(*moved), expected)
        out = LAYOUTS[name](np.zeros_like(expected))
        if out.dtype.isnative and out.flags.writeable:
            assert linattn.delta(*moved, out=out) is out
            np.testing.assert_array_equal(out, expected)
        grads = linattn.delta_backward(*moved, LAYOUTS[name](g))
        for x, y in zip(grads, linattn.delta_backward(*operands, g), strict=True):
            np.testing.assert_array_equal(x, y)


def test_out_overlaps_an_operand():
    q, k, v, beta, _ = make(delta_case(50, 16, 16))
    expected = linattn.delta(q, k, v, beta)
    for which in range(3):
        operands = [q.copy(), k.copy(), v.copy()]
        linattn.delta(*operands, beta, out=operands[which])
        np.testing.assert_array_equal(operands[which], expected)


def test_broadcasting():
    """Leading axes of every operand, and gradients summed back to each."""
    rng = np.random.default_rng(0)
    n, d, m = 20, 4, 3
    lead = {"q": (2, 1, 3), "k": (1, 3), "v": ()}
    q, k, v = (
        rng.uniform(-0.5, 0.5, (*lead[name], n, size))
        for name, size in (("q", d), ("k", d), ("v", m))
    )
    for shape in ((n,), (5, 1, n), (1, 1, 1, n, m), (2, 5, 1, n, 1)):
        beta = rng.uniform(0, 1, shape)
        channels = beta if beta.ndim == q.ndim else beta[..., None]
        batch = np.broadcast_shapes((2, 1, 3), channels.shape[:-2])
        full = np.broadcast_to(channels, (*batch, n, m))
        expected = ref.delta(q, k, v, full)
        close(linattn.delta(q, k, v, beta), expected, atol=roundings(ROUNDINGS, expected))
        g = rng.standard_normal(expected.shape)
        grads = linattn.delta_backward(q, k, v, beta, g)
        twin = ref.delta_backward(q, k, v, full, g)
        assert_close(grads[:3], twin[:3])
        padded = (1,) * (5 - channels.ndim) + channels.shape
        axes = tuple(i for i, size in enumerate(padded) if size == 1)
        assert grads[3].shape == beta.shape
        # Every term of the sum is off by roundings of the largest.
        count = ROUNDINGS * full.size / beta.size
        close(grads[3].ravel(), twin[3].sum(axes).ravel(), atol=roundings(count, twin[3]))


def test_beta_by_its_axes():
    """n = m: the number of axes decides, and a last axis of 1 serves all channels."""
    q, k, v, beta, _ = make(delta_case(8, 4, 8, (8,), dtype="float64"))
    per_token = linattn.delta(q, k, v, beta)
    np.testing.assert_array_equal(linattn.delta(q, k, v, beta[..., None]), per_token)
    channels = np.broadcast_to(beta[..., None], v.shape)
    np.testing.assert_array_equal(linattn.delta(q, k, v, channels), per_token)
    np.testing.assert_array_equal(linattn.delta(q, k, v, beta[:1])[0], per_token[0])
    np.testing.assert_array_equal(linattn.delta(q[0], k[0], v[0], beta[0]), per_token[0])
    square = linattn.delta(q[0], k[0], v[0], beta)  # (n, m), though it could be (batch, n)
    expected = ref.delta(q[0], k[0], v[0], beta)
    close(square, expected, atol=roundings(ROUNDINGS, expected))


@CHANNELS
def test_split_anywhere(channels):
    """A sequence cut at t goes on from its state; and so does the gradient, backwards."""
    n, case = 50, delta_case(50, 6, 5, (2,), channels, dtype="float64")
    operands = make(case)
    whole, last = linattn.delta(*operands[:4], **case.options, return_state=True)
    assert last.z is None
    grads = linattn.delta_backward(*operands, **case.options)
    for t in range(n + 1):
        *first, g0 = tokens(operands, 0, t, channels)
        *second, g1 = tokens(operands, t, n, channels)
        o0, state = linattn.delta(*first, **case.options, return_state=True)
        start = {**case.options, "initial_state": state}
        o1, end = linattn.delta(*second, **start, return_state=True)
        close(np.concatenate([o0, o1], -2), whole, atol=roundings(ROUNDINGS, whole))
        close(end.s, last.s, atol=roundings(ROUNDINGS, last.s))
        *late, between = linattn.delta_backward(*second, g1, **start)
        *early, none = linattn.delta_backward(*first, g0, **case.options, grad_state=between)
        assert none.z is None
        axes = (-2, -2, -2, -1 - channels)
        parts = [np.concatenate(x, axis) for *x, axis in zip(early, late, axes, strict=True)]
        assert_close(parts, grads)


@CHANNELS
def test_packed_sequences(channels):
    case = delta_case(90, 7, 6, (2,), channels, dtype="float64")
    *operands, g = arrays = make(case)
    bounds = np.array([0, 1, 1, 17, 50, 50, 90])
    rng = np.random.default_rng(1)
    start, last = (
        linattn.State(rng.standard_normal((2, len(bounds) - 1, case.d, case.m))) for _ in "ab"
    )
    options = {**case.options, "cu_seqlens": bounds, "initial_state": start}
    o, state = linattn.delta(*operands, **options, return_state=True)
    *grads, ds = linattn.delta_backward(*operands, g, **options, grad_state=last)
    for r, (begin, end) in enumerate(pairwise(bounds)):
        *some, cotangent = tokens(arrays, begin, end, channels)
        alone = {**case.options, "initial_state": linattn.State(start.s[:, r])}
        expected, final = linattn.delta(*some, **alone, return_state=True)
        np.testing.assert_array_equal(o[:, begin:end], expected)
        np.testing.assert_array_equal(state.s[:, r], final.s)
        *few, first = linattn.delta_backward(
            *some, cotangent, **alone, grad_state=linattn.State(last.s[:, r])
        )
        for x, y in zip(grads, few, strict=True):
            np.testing.assert_array_equal(x[:, begin:end], y)
        np.testing.assert_array_equal(ds.s[:, r], first.s)


@CHANNELS
def test_key_lengths(channels):
    """What lies past them may hold anything, and its gradient is 0."""
    case = delta_case(40, 5, 6, (4,), channels, dtype="float64")
    *operands, g = make(case)
    lengths = np.array([0, 13, 16, 40])
    initial = linattn.State(np.random.default_rng(2).standard_normal((4, 5, 6)))
    options = {**case.options, "key_lengths": lengths, "initial_state": initial}
    expected, end = ref.delta(*operands, **options, return_state=True)
    *twin, ds = ref.delta_backward(*operands, g, **options)
    bad = [x.copy() for x in operands]
    for head, length in enumerate(lengths):
        for x in bad[1:]:
            x[head, length:] = np.nan
    o, state = linattn.delta(*bad, **options, return_state=True)
    close(o, expected, atol=roundings(ROUNDINGS, expected))
    close(state.s, end.s, atol=roundings(ROUNDINGS, end.s))
    *grads, start = linattn.delta_backward(*bad, g, **options)
    assert_close((*grads, start.s), (*twin, ds.s))
    for head, length in enumerate(lengths):
        assert not any(x[head, length:].any() for x in grads[1:])


@pytest.mark.parametrize("feature_map", MAPS)
@CHANNELS
def test_step(feature_map, channels):
    """Token by token, in place or not, it is the same as all at once."""
    for dtype in DTYPES:
        for d, m in [(5, 3), (64, 64), (17, 70)]:
            case = delta_case(20, d, m, (2,), channels, feature_map, dtype)
            q, k, v, beta, _ = make(case)
            wide = (x.astype(np.longdouble) for x in (q, k, v, beta))
            expected, last = ref.delta(*wide, **case.options, return_state=True)
            allowed = roundings(DELTA_ROUNDINGS, expected, dtype=dtype)
            state = linattn.State(np.zeros((2, d, m), dtype))
            mine = linattn.State(np.zeros((2, d, m), dtype))
            for i in range(case.n):
                one = (q[:, i], k[:, i], v[:, i], beta[:, i])
                o, state = linattn.delta_step(*one, state, **case.options)
                same, kept = linattn.delta_step(*one, mine, **case.options, in_place=True)
                np.testing.assert_array_equal(o, same)
                assert kept is mine
                close(o, expected[:, i], atol=allowed)
            np.testing.assert_array_equal(state.s, mine.s)
            close(state.s, last.s, atol=roundings(DELTA_ROUNDINGS, last.s, dtype=dtype))


def test_step_at_any_stride():
    q, k, v, beta, _ = (x[:, 0] for x in make(delta_case(1, 9, 7, (2,), True)))
    s = np.random.default_rng(0).standard_normal((2, 9, 7)).astype("f4")
    expected, end = linattn.delta_step(q, k, v, beta, linattn.State(s))
    turned = linattn.State(np.ascontiguousarray(s.mT).mT)
    o, state = linattn.delta_step(q[..., ::-1][..., ::-1], k, v, beta, turned, in_place=True)
    close(o, expected, atol=roundings(ROUNDINGS, expected))
    close(state.s, end.s, atol=roundings(ROUNDINGS, end.s))


def test_step_takes_a_number():
    """A Python number has no dtype of its own."""
    q, k, v = (np.ones(3, "f4") for _ in range(3))
    o, state = linattn.delta_step(q, k, v, 0.5, linattn.State(np.zeros((3, 3), "f4")))
    assert o.dtype == state.s.dtype == np.float32
    with pytest.raises(ValueError, match="delta_step: beta is too large for a float"):
        linattn.delta_step(q, k, v, 10**400, state)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_steps_of_16_bits_take_a_number(dtype):
    """Which does not widen the result."""
    q = np.ones(3, dtype)
    state = linattn.State(np.zeros((3, 3), "f4"))
    for o, _ in (
        linattn.delta_step(q, q, q, 0.1, state),
        linattn.gated_step(q, q, q, -0.1, state),
        linattn.gated_delta_step(q, q, q, -0.1, 1, state),
    ):
        assert o.dtype == dtype
    expected = linattn.delta_step(q, q, q, dtype(0.1), state)[0]
    np.testing.assert_array_equal(linattn.delta_step(q, q, q, 0.1, state)[0], expected)


def test_nothing_to_do():
    for n, d, m in [(0, 4, 3), (5, 0, 3), (5, 4, 0)]:
        q, v = np.ones((2, n, d)), np.ones((2, n, m))
        for beta in (np.ones((2, n)), np.ones((2, n, m))):
            o, state = linattn.delta(q, q, v, beta, return_state=True)
            assert o.shape == v.shape and state.s.shape == (2, d, m)
            assert not o.any() or (d and m)
            grads = linattn.delta_backward(q, q, v, beta, v)
            assert [x.shape for x in grads] == [q.shape, q.shape, v.shape, beta.shape]
            assert not any(x.any() for x in grads)


def test_ufuncs():
    """What the wrapper calls, in the documented order of operands."""
    *operands, g = make(delta_case(19, 6, 7, (2,)))
    channels = np.repeat(operands[3][..., None], 7, -1)
    for name in maps.MAPS:
        o = linattn.delta(*operands, feature_map=name, scale=0.5)
        ufunc = getattr(linattn.ufuncs, f"delta_{name}")
        assert isinstance(ufunc, np.ufunc)
        assert "beta" in ufunc.__doc__
        np.testing.assert_array_equal(ufunc(*operands, 0.5), o)
        per_channel = getattr(linattn.ufuncs, f"delta_channels_{name}")
        np.testing.assert_array_equal(per_channel(*operands[:3], channels, 0.5), o)
        grads = getattr(linattn.ufuncs, f"delta_backward_{name}")(*operands, g, 0.5)
        expected = linattn.delta_backward(*operands, g, feature_map=name, scale=0.5)
        for x, y in zip(grads, expected, strict=True):
            np.testing.assert_array_equal(x, y)
    s, first = np.zeros((2, 6, 7), "f4"), linattn.delta(*operands)[:, 0]
    for ufunc, beta in (
        (linattn.ufuncs.delta_step_identity, operands[3]),
        (linattn.ufuncs.delta_channels_step_identity, channels),
    ):
        o, _ = ufunc(*(x[:, 0] for x in (*operands[:3], beta)), 1.0, s)
        close(o, first, atol=roundings(ROUNDINGS, first))


def test_a_strength_a_head_in_place():
    """The longest of q, k and v tells it from one a channel, though q is one for all heads."""
    rng = np.random.default_rng(0)
    d, heads = 3, 5  # as many channels as heads
    q, k, v = rng.random(d), rng.random((heads, d)), rng.random((heads, heads))
    beta = rng.random(heads)
    state = linattn.State(rng.random((heads, d, heads)))
    o, end = linattn.delta_step(q, k, v, beta, state)
    again, same = linattn.delta_step(q, k, v, beta, state, in_place=True)
    assert same is state
    np.testing.assert_array_equal(again, o)
    np.testing.assert_array_equal(state.s, end.s)
