"""Positive random features, which rescale as they go: inputs of any size, gradients, states."""

import numpy as np
import pytest
from bounds import FORWARD_MEAN, close, excess, roundings
from isas import ISAS
from map_cases import BACKWARD, FORWARD, POSITIVE, D, exact, operands
from slow import slow
from states import assert_close

import linattn
from linattn import State
from linattn import feature_maps as maps
from linattn.reference import linear as reference
from linattn.reference import maps as twins
from linattn.reference import rescaled_features as reference_rescaled


@pytest.mark.parametrize("operator", FORWARD)
@pytest.mark.parametrize("phi", [POSITIVE[0], *slow(*POSITIVE[1:])], ids=str)
@pytest.mark.parametrize("scale", [3e4, *slow(0.01, 4, 300, 3e9)])
def test_inputs_of_any_size(operator, phi, scale):
    """Finite, and right to the rounding of exponents that grow like scale^2."""
    for dtype in (np.float32, np.float64):
        q, k, v, _ = operands(150, dtype, scale)
        o = FORWARD[operator](q, k, v, feature_map=phi, eps=0.0)
        expected, units = exact(q, k, v, phi, operator == "causal")
        assert o.dtype == dtype
        assert excess(o, expected, np.finfo(dtype).eps / 2 * units) <= 1
        with_eps = FORWARD[operator](q, k, v, feature_map=phi)
        # eps is relative to the largest term, by a power of two: at most twice itself.
        close(with_eps, o, atol=roundings(4 * FORWARD_MEAN, v), rtol=2e-6)


@pytest.mark.parametrize("phi", POSITIVE, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_all_is_finite(dtype, phi):
    """Up to where x omega overflows: output, state and gradients; no key is lost to inf - inf."""
    scales = {np.float16: (300, 1e4), np.float32: (3e4, 1e15, 1e19, 1e25, 1e35)}
    for scale in scales.get(dtype, (3e9, 1e30, 1e154, 1e200, 1e300)):
        q, k, v, g = (x.astype(dtype) for x in operands(70, np.float64, scale))
        for name, forward in FORWARD.items():
            o = forward(q, k, v, feature_map=phi)
            assert np.isfinite(o).all()
            assert (o <= v.max()).all() and (o >= v.min()).all()
            # A gradient is a multiple of q or k: float16 has no room for it.
            wide = (x.astype("f4") if dtype == np.float16 else x for x in (q, k, v, g))
            grads = BACKWARD[name](*wide, feature_map=phi)
            assert all(np.isfinite(x).all() for x in grads)
        state = linattn.causal(q, k, v, feature_map=phi, return_state=True)[1]
        assert all(np.isfinite(x).all() for x in state)
        small, _ = linattn.step(q[..., 0, :], k[..., 0, :], v[..., 0, :], state, feature_map=phi)
        assert np.isfinite(small).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_smallest_of_huge_keys_wins(dtype):
    """Its exponent is by far the largest, as long as float32 can tell them apart."""
    q, k, v, _ = operands(70, dtype)
    size = np.sqrt((k.astype(float) ** 2).sum(-1))
    first = np.minimum.accumulate(size, -1)
    nearest = (size[..., None, :] == first[..., None]).argmax(-1)
    expected = np.take_along_axis(v, nearest[..., None], -2)
    rtol = 4 * float(np.finfo(dtype).eps)
    for scale in (1e10, 1e15, 1e18):
        o = linattn.causal(q, dtype(scale) * k, v, feature_map=POSITIVE[0], eps=0.0)
        close(o, expected, atol=0, rtol=rtol)
        o = linattn.noncausal(q, dtype(scale) * k, v, feature_map=POSITIVE[0], eps=0.0)
        close(o[..., -1, :], expected[..., -1, :], atol=0, rtol=rtol)


@pytest.mark.parametrize("operator", FORWARD)
@pytest.mark.parametrize("name", ISAS)
def test_any_number_of_features(isa, name, operator):
    """Those that fill no vector and no register tile too, call after call."""
    isa(name)
    for dtype in (np.float32, np.float64):
        q, k, v, _ = operands(70, dtype)
        for f in (1, 2, 3, 4, 5, 6, 9, 14, 18):
            phi = maps.PositiveRandomFeatures.sample(D, f, rng=f)
            first = FORWARD[operator](q, k, v, feature_map=phi, eps=0.0)
            expected, units = exact(q, k, v, phi, operator == "causal")
            assert excess(first, expected, np.finfo(dtype).eps / 2 * units) <= 1
            for _ in range(3):
                again = FORWARD[operator](q, k, v, feature_map=phi, eps=0.0)
                np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("scale", [0.01, 1, 30])
def test_no_bit_of_a_later_key(scale):
    for phi in POSITIVE:
        q, k, v, _ = operands(700, np.float32, scale)
        o = linattn.causal(q, k, v, feature_map=phi)
        for t in (1, 63, 64, 600, 699):
            kt, vt = k.copy(), v.copy()
            kt[..., t:, :] *= -7
            vt[..., t:, :] = np.nan
            moved = linattn.causal(q, kt, vt, feature_map=phi)
            np.testing.assert_array_equal(moved[..., :t, :], o[..., :t, :])


def test_growing_keys():
    """Each key larger than those before: as many changes of scale as there are."""
    rng = np.random.default_rng(0)
    k = np.linspace(0.1, 30, 300)[:, None] * np.sign(rng.standard_normal(D))
    q, v = rng.standard_normal((300, D)), rng.standard_normal((300, 4))
    for order in (k, k[::-1]):
        o = linattn.causal(q, order, v, feature_map=POSITIVE[0], eps=0.0)
        expected, units = exact(q, order, v, POSITIVE[0], True)
        assert excess(o, expected, 2.0**-53 * units) <= 1


def test_key_lengths_hide_keys():
    q, k, v, _ = operands(100, np.float64, 5.0)
    phi = POSITIVE[1]
    k[..., 60:, :], v[..., 60:, :] = np.nan, np.nan
    for f in FORWARD.values():
        o = f(q, k, v, feature_map=phi, key_lengths=60)
        assert np.isfinite(o).all()
    o = linattn.causal(q, k, v, feature_map=phi, key_lengths=60)
    head = [x[..., :60, :] for x in (q, k, v)]
    np.testing.assert_array_equal(o[..., :60, :], linattn.causal(*head, feature_map=phi))
    assert not linattn.causal(q, k, v, feature_map=phi, key_lengths=0).any()


@pytest.mark.parametrize("operator", FORWARD)
@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_gradients(operator, scale, eps):
    rng = np.random.default_rng(0)
    q, k, v, g = operands(60, np.float64, scale)
    k = k[:, :1]
    phi, options = POSITIVE[1], {"feature_map": POSITIVE[1], "eps": eps}
    grads = BACKWARD[operator](q, k, v, g, **options)
    for i, grad in enumerate(grads):
        step = 1e-7 * rng.standard_normal(grad.shape)
        ends = []
        for sign in (1, -1):
            moved = [q, k, v]
            moved[i] = moved[i] + sign * step
            ends.append((g * FORWARD[operator](*moved, **options)).sum())
        close((ends[0] - ends[1]) / 2, (grad * step).sum(), atol=0, rtol=1e-4)
    if scale == 1 and eps == 0:
        exact_grads = getattr(reference, f"{operator}_backward")(
            q, k, v, g, feature_map=twins.twin(phi), eps=0.0
        )
        for x, y in zip(grads, exact_grads, strict=True):
            close(x, y, rtol=1e-9, atol=1e-12 * abs(y).max())


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("operator", FORWARD)
@pytest.mark.parametrize("phi", POSITIVE, ids=str)
def test_eps_counts_relative_to_the_largest_term(isa, name, phi, operator):
    """In the result and in its gradient: against the twin and its complex step, entry by entry."""
    isa(name)
    for eps, factor, scale in (
        (0.5, 1.0, 0.7),
        (20.0, 4.0, -0.1),
        (2.0, 30.0, 1.0),
        (1e-6, 1.0, 1.0),
    ):
        q, k, v, g = (x[0, 0] for x in operands(11, np.float64, factor))
        options = {"eps": eps, "scale": scale}
        one = {**options, "feature_map": twins.twin(phi), "causal": operator == "causal"}
        o = FORWARD[operator](q, k, v, feature_map=phi, **options)
        expected = reference_rescaled.attention(q, k, v, **one)
        terms = 1e-13 * max(1, factor) ** 2  # exponents grow with the square
        close(o, expected, rtol=0, atol=terms * abs(expected).max())
        grads = BACKWARD[operator](q, k, v, g, feature_map=phi, **options)
        for i, grad in enumerate(grads):
            expected = np.empty_like(grad)
            for at in np.ndindex(grad.shape):
                moved = [x.astype(complex) for x in (q, k, v)]
                moved[i][at] += 1e-30j
                o = reference_rescaled.attention(*moved, **one)
                expected[at] = (g * o.imag).sum() / 1e-30
            close(grad, expected, rtol=0, atol=terms * abs(expected).max())


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("scale", [1, 10])
def test_gradient_of_a_state(scale, plain):
    """That of log_scale too, on which eps depends: by differences, at the ends of a sequence."""
    rng = np.random.default_rng(5)
    q, k, v, g = operands(20, np.float64, scale)
    options = {"feature_map": POSITIVE[0], "eps": 2.0, "scale": 0.7, "key_lengths": [0, 12, 20]}
    _, start = linattn.causal(q / 2, k / 2, v, return_state=True, **options)
    start = start._replace(log_scale=np.where(np.isfinite(start.log_scale), start.log_scale, -9.0))
    if plain:
        start = linattn.State(start.s, start.z + 0.5)
    ends = linattn.State(*(rng.standard_normal(x.shape) for x in (start.s, start.z, start.z)))

    def loss(state):
        o, end = linattn.causal(q, k, v, initial_state=state, return_state=True, **options)
        return (g * o).sum() + sum((x * y).sum() for x, y in zip(ends, end, strict=True))

    *_, grad = linattn.causal_backward(q, k, v, g, initial_state=start, grad_state=ends, **options)
    assert (grad.log_scale is None) is plain
    for i, x in enumerate(start[: 2 if plain else 3]):
        step = 1e-6 * rng.standard_normal(x.shape) * abs(x)
        moved = [start._replace(**{State._fields[i]: x + sign * step}) for sign in (1, -1)]
        difference = (loss(moved[0]) - loss(moved[1])) / 2
        close(difference, (grad[i] * step).sum(), rtol=0, atol=1e-6 * abs(grad[i] * step).sum())


@pytest.mark.parametrize("eps", [0.0, 0.5, 1e-6])
@pytest.mark.parametrize("scale", [1, 30])
def test_cut_anywhere(scale, eps):
    """Outputs and states are those of the whole; its gradients come back through grad_state."""
    q, k, v, g = operands(300, np.float64, scale)
    options = {"feature_map": POSITIVE[0], "eps": eps}
    o, end = linattn.causal(q, k, v, return_state=True, **options)
    whole = linattn.causal_backward(q, k, v, g, **options)
    outputs, grads, states, ds = [], [], [None], None
    cuts = [slice(0, 1), slice(1, 130), slice(130, 130), slice(130, 300)]
    parts = [[x[..., cut, :] for x in (q, k, v, g)] for cut in cuts]
    for part in parts:
        y, state = linattn.causal(*part[:3], initial_state=states[-1], return_state=True, **options)
        outputs.append(y)
        states.append(state)
    assert_close(np.concatenate(outputs, -2), o, rtol=1e-11, atol=1e-12)
    assert_close(states[-1], end, atol=0, rtol=1e-11)
    zeros = State(*(0 * x for x in end))
    for part, state in zip(parts[::-1], states[-2::-1], strict=True):
        some = {} if state is None else {"initial_state": state}
        *pieces, ds = linattn.causal_backward(*part, grad_state=ds or zeros, **some, **options)
        grads.insert(0, pieces)
    for pieces, x in zip(zip(*grads, strict=True), whole, strict=True):
        close(np.concatenate(pieces, -2), x, rtol=1e-8, atol=1e-9 * abs(x).max())


@pytest.mark.parametrize("fields", [("s", "z"), ("s", "z", None)])
def test_a_step_in_place_needs_a_scale_to_write_to(fields):
    phi = linattn.feature_maps.PositiveRandomFeatures(np.eye(4))
    x = np.ones((2, 4))
    state = linattn.initial_state(x, x, x, operator="step", feature_map=phi)
    given = tuple(None if field is None else getattr(state, field) for field in fields)
    with pytest.raises(ValueError, match=r"step: state\.log_scale is None; expected an array"):
        linattn.step(x, x, x, given, feature_map=phi, in_place=True)
