"""The twin against itself: gradients by complex steps, options against plain calls."""

from itertools import pairwise

import numpy as np
import pytest
from bounds import close

from linattn.reference import delta_rule as ref_delta
from linattn.reference import linear as ref
from linattn.reference import maps
from linattn.reference import softmax as ref_softmax

EPS = np.finfo(float).eps
STEP = 1e-30  # a complex step has no cancellation, so it can be as small as one likes
ANY_MAP = [*maps.MAPS, maps.DPFP(), maps.DPFP(nu=3, normalize=False)]


def complex_step(f, arrays, which):
    """Gradient of the scalar f(*arrays) with respect to arrays[which]."""
    grad = np.empty(arrays[which].shape)
    for index in np.ndindex(grad.shape):
        moved = [x.astype(complex) for x in arrays]
        moved[which][index] += 1j * STEP
        grad[index] = f(*moved).imag / STEP
    return grad


def operands(rng, n=5, s=5, d=3, m=2, lead=(2,)):
    shapes = [(*lead, n, d), (1, s, d), (s, m), (*lead, n, m)]  # k and v are broadcast
    return [rng.uniform(0.2, 1.5, shape) * rng.choice([-1, 1], shape) for shape in shapes]


def positive(feature_map, normalize, q, k):
    """Under a normaliser the identity map needs weights that cannot cancel."""
    if normalize and feature_map == "identity":
        return abs(q), abs(k)
    return q, k


@pytest.mark.parametrize("feature_map", maps.MAPS)
def test_derivative_of_map(feature_map):
    phi = maps.get(feature_map)
    x = np.array([-750.0, -30.0, -1.0, -1e-9, 1e-9, 0.5, 30.0, 700.0])
    slope = phi(x + 1j * STEP).imag / STEP
    close(phi.backward(x, np.ones_like(x)), slope, atol=0, rtol=1e-14)


def test_maps_at_the_edges():
    x = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan])
    for name, at in {
        "identity": [-np.inf, 0, 0, np.inf, np.nan],
        "relu": [0, 0, 0, np.inf, np.nan],
        "elu": [0, 1, 1, np.inf, np.nan],
        "softplus": [0, np.log(2), np.log(2), np.inf, np.nan],
        "exp": [0, 1, 1, np.inf, np.nan],
    }.items():
        close(maps.get(name)(x), at, atol=0, rtol=1e-15)
    assert maps.get("relu").backward(np.zeros(1), np.ones(1)) == 0


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ANY_MAP, ids=str)
def test_gradients(feature_map, normalize):
    rng = np.random.default_rng(1)
    for operator, s in [("causal", 5), ("noncausal", 4), ("noncausal", 7)]:
        q, k, v, g = operands(rng, s=s)
        q, k = positive(feature_map, normalize, q, k)
        options = {"feature_map": feature_map, "normalize": normalize, "scale": 0.7, "eps": 0.1}
        options["key_lengths"] = np.array([3, 2])
        forward = getattr(ref, operator)
        grads = getattr(ref, f"{operator}_backward")(q, k, v, g, **options)

        def loss(q, k, v, forward=forward, g=g, options=options):
            return (g * forward(q, k, v, **options)).sum()

        for which, grad in enumerate(grads):
            expected = complex_step(loss, [q, k, v], which)
            close(grad, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_of_states(normalize):
    rng = np.random.default_rng(2)
    q, k, v, g = operands(rng, n=6, s=6)
    ends = [0, 2, 2, 6]
    s0, z0 = rng.random((3, 3, 2)), rng.random((2, 3, 3))  # the s of both batch entries is shared
    ds, dz = rng.standard_normal((2, 2, 3, 3, 2)), rng.standard_normal((2, 3, 3))
    ds = ds[0]
    options = {"normalize": normalize, "eps": 0.1, "cu_seqlens": ends}

    def state(s, z):
        return ref.State(s, z if normalize else None)

    def loss(q, k, v, s0, z0):
        o, last = ref.causal(q, k, v, initial_state=state(s0, z0), return_state=True, **options)
        total = (g * o).sum() + (ds * last.s).sum()
        return total + (dz * last.z).sum() if normalize else total

    *grads, start = ref.causal_backward(
        q, k, v, g, initial_state=state(s0, z0), grad_state=state(ds, dz), **options
    )
    grads += [start.s, start.z] if normalize else [start.s]
    for which, grad in enumerate(grads):
        expected = complex_step(loss, [q, k, v, s0, z0], which)
        close(grad, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("feature_map", ["identity", "elu", maps.DPFP(nu=2)], ids=str)
def test_gradients_of_delta(feature_map, channels):
    rng = np.random.default_rng(3)
    q, k, v, g = operands(rng, n=6, s=6)
    f = maps.get(feature_map)(k).shape[-1]
    beta = rng.random((2, 6, 2) if channels else (1, 6))
    s0, ds = rng.standard_normal((3, f, 2)), rng.standard_normal((2, 3, f, 2))
    options = {"feature_map": feature_map, "scale": 0.7}
    options |= {"cu_seqlens": [0, 2, 2, 6], "key_lengths": [5, 1]}

    def loss(q, k, v, beta, s0):
        start = ref.State(s0, None)
        o, last = ref_delta.delta(q, k, v, beta, initial_state=start, return_state=True, **options)
        return (g * o).sum() + (ds * last.s).sum()

    *grads, start = ref_delta.delta_backward(
        q, k, v, beta, g,
        initial_state=ref.State(s0, None), grad_state=ref.State(ds, None), **options,
    )  # fmt: skip
    for which, grad in enumerate([*grads, start.s]):
        expected = complex_step(loss, [q, k, v, beta, s0], which)
        close(grad, expected, rtol=1e-11, atol=1e-12)


def test_dpfp_is_its_definition():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 4))
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    y = np.array([[row[j] * row[(j - i) % 8] for i in (1, 2, 3) for j in range(8)] for row in r])
    close(maps.DPFP(nu=3, normalize=False)(x), y, atol=0, rtol=4 * EPS)
    mean = y / (y.sum(-1, keepdims=True) + 1e-6)
    close(maps.DPFP(nu=3)(x), mean, atol=0, rtol=y.shape[-1] * EPS)
    zero = np.zeros((2, 4))
    assert not maps.DPFP()(zero).any()
    assert not maps.DPFP().backward(zero, np.ones((2, 8))).any()


def test_packed_is_a_loop_over_sequences():
    rng = np.random.default_rng(5)
    q, k, v, _ = operands(rng, n=9, s=9)
    beta, ends = rng.random((2, 9)), [0, 4, 4, 9]
    s0, z0 = rng.random((2, 3, 3, 2)), rng.random((2, 3, 3))
    out, last = ref.causal(
        q, k, v, cu_seqlens=ends, initial_state=ref.State(s0, z0), return_state=True
    )
    for r, (i, j) in enumerate(pairwise(ends)):
        start = ref.State(s0[:, r], z0[:, r])
        token = (..., slice(i, j), slice(None))
        o, state = ref.causal(q[token], k[token], v[token], initial_state=start, return_state=True)
        np.testing.assert_array_equal(out[token], o)
        np.testing.assert_array_equal(last.s[:, r], state.s)
        np.testing.assert_array_equal(last.z[:, r], state.z)
    out = ref_delta.delta(q, k, v, beta, cu_seqlens=ends)
    np.testing.assert_array_equal(
        out[..., 4:, :], ref_delta.delta(q[..., 4:, :], k[..., 4:, :], v[..., 4:, :], beta[..., 4:])
    )


def test_steps_are_causal():
    rng = np.random.default_rng(6)
    q, k, v, _ = operands(rng, n=4, s=4, lead=())
    beta = rng.random(4)
    k = k[0]
    state = ref.State(np.zeros((3, 2)), np.zeros(3))
    memory = ref.State(np.zeros((3, 2)), None)
    expected, expected_delta = ref.causal(q, k, v), ref_delta.delta(q, k, v, beta)
    for i in range(4):
        o, state = ref.step(q[i], k[i], v[i], state)
        close(o, expected[i], atol=0, rtol=1e-14)
        o, memory = ref_delta.delta_step(q[i], k[i], v[i], beta[i], memory)
        close(o, expected_delta[i], atol=0, rtol=1e-13)


def test_padding_does_not_exist():
    rng = np.random.default_rng(7)
    q, k, v, g = operands(rng, n=6, s=6)
    k, v = np.array(np.broadcast_to(k, (2, 6, 3))), np.array(np.broadcast_to(v, (2, 6, 2)))
    lengths = [0, 4]
    k[0], v[0], k[1, 4:], v[1, 4:] = 4 * [np.nan]
    out = ref.noncausal(q, k, v, key_lengths=lengths)
    np.testing.assert_array_equal(out[0], 0)
    close(out[1], ref.noncausal(q[1], k[1, :4], v[1, :4]), atol=0, rtol=1e-14)
    causal = ref.causal(q, k, v, key_lengths=lengths)
    close(causal[1, 3:], out[1, 3:], atol=0, rtol=1e-13)
    for backward in (ref.causal_backward, ref.noncausal_backward):
        dq, dk, dv = backward(q, k, v, g, key_lengths=lengths)
        assert np.isfinite(dq).all()
        assert not dk[0].any() and not dv[0].any() and not dk[1, 4:].any() and not dv[1, 4:].any()


def test_longdouble_and_complex_are_kept():
    x = np.ones((2, 3))
    for dtype in (np.longdouble, np.complex128):
        assert ref.causal(x, x.astype(dtype), x).dtype == dtype
        assert ref.noncausal(x, x, x.astype(dtype)).dtype == dtype
    assert ref.causal(*3 * [x.astype("f4")]).dtype == np.float64


def test_operands_narrower_than_the_call():
    """A cotangent, or a strength, with fewer heads than the values is shared by all of them."""
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal(shape) for shape in ((4, 3), (4, 3), (2, 4, 5), (4, 5)))
    for backward in (
        ref.noncausal_backward, ref.causal_backward, ref_softmax.softmax_attention_backward,
    ):  # fmt: skip
        options = {} if backward is ref_softmax.softmax_attention_backward else {"normalize": False}
        narrow = backward(q, k, v, g, **options)
        whole = backward(q, k, v, np.broadcast_to(g, v.shape), **options)
        for x, y in zip(narrow, whole, strict=True):
            close(x, y, rtol=1e-14, atol=1e-14)
    state = ref.State(rng.standard_normal((2, 4, 3, 5)), None)
    token, value = rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 4, 5))
    beta = rng.random(4)
    narrow = ref_delta.delta_step(token, token, value, beta, state)
    whole = ref_delta.delta_step(token, token, value, np.broadcast_to(beta, (2, 4)), state)
    close(narrow[0], whole[0], rtol=1e-14, atol=1e-14)


def test_strengths_in_padding_do_not_exist():
    rng = np.random.default_rng(0)
    q, v, g = (rng.standard_normal((4, width)) for width in (3, 5, 5))
    beta = rng.random(4)
    padded = np.where(np.arange(4) < 2, beta, np.nan)
    for f, rest in ((ref_delta.delta, ()), (ref_delta.delta_backward, (g,))):
        clean = f(q, q, v, beta, *rest, key_lengths=2)
        for x, y in zip(f(q, q, v, padded, *rest, key_lengths=2), clean, strict=True):
            np.testing.assert_array_equal(x, y)


def test_no_features_at_all():
    """Scores are 0, whatever the scale."""
    x, v = np.ones((3, 0)), np.arange(6.0).reshape(3, 2)
    close(ref_softmax.softmax_attention(x, x, v), np.tile(v.mean(0), (3, 1)), rtol=1e-15, atol=0)
