"""What only the delta rule does: strengths of every kind, memories that may grow."""

import ml_dtypes
import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, close, roundings
from cases import delta_case, make
from states import assert_close

import linattn
from linattn.reference import delta_rule as ref

#: Of either side, where two results of the same dtype are compared.
ROUNDINGS = 2 * DELTA_ROUNDINGS


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


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_steps_take_a_number(dtype):
    """A Python number has no dtype of its own."""
    q = k = v = np.ones(3, dtype)
    state = linattn.State(np.zeros((3, 3), "f4"))
    phi = linattn.feature_maps.DPFP()
    wide = linattn.State(np.zeros((phi.features(3), 3), "f4"))
    for o, end in (
        linattn.delta_step(q, k, v, 0.1, state),
        linattn.delta_step(q, k, v, 0.1, wide, feature_map=phi),
        linattn.gated_step(q, k, v, -0.1, state),
        linattn.gated_delta_step(q, k, v, -0.1, 1, state),
    ):
        assert o.dtype == dtype and end.s.dtype == np.float32
    expected = linattn.delta_step(q, k, v, dtype(0.1), state)[0]
    np.testing.assert_array_equal(linattn.delta_step(q, k, v, 0.1, state)[0], expected)
    with pytest.raises(ValueError, match="delta_step: beta is too large for a float"):
        linattn.delta_step(q, k, v, 10**400, state)


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


def test_one_channel_keeps_to_itself():
    """Columns of the values never meet."""
    case = delta_case(70, 16, 40, (), True)
    q, k, v, beta, _ = make(case)
    clean = linattn.delta(q, k, v, beta)
    v[20, 3] = beta[33, 17] = np.nan
    o = linattn.delta(q, k, v, beta)
    rest = [i for i in range(40) if i not in (3, 17)]
    np.testing.assert_array_equal(o[:, rest], clean[:, rest])
    assert np.isnan(o[20:, 3]).all() and np.isnan(o[33:, 17]).all()


def test_divergence_is_causal():
    """Keys of norm 30 blow the memory up: inf or NaN, from some token on, and no hang."""
    case = delta_case(400, 16, 8, dtype="float32")
    q, k, v, beta, g = make(case)
    calm = linattn.delta(q, k, v, beta)
    k[100:] *= 30
    with np.errstate(all="ignore"):
        o = linattn.delta(q, k, v, beta + 1)
        mixed = linattn.delta(q, k, v, beta)
        grads = linattn.delta_backward(q, k, v, beta, g)
    np.testing.assert_array_equal(mixed[:100], calm[:100])
    assert not np.isfinite(mixed[-1]).any() and not np.isfinite(o[-1]).any()
    assert np.isfinite(grads[0][:100]).all()  # the past's queries read the past


def test_long_sequence_stays_bounded():
    """65,536 unit keys in float32, against float64, within 1e-4 of the largest entry."""
    rng = np.random.default_rng(4)
    n, d, m = 65536, 32, 16
    q, k = rng.standard_normal((2, n, d)).astype("f4")
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, beta = rng.standard_normal((n, m)).astype("f4"), rng.uniform(0, 1, n).astype("f4")
    o, state = linattn.delta(q, k, v, beta, return_state=True)
    wide, end = linattn.delta(*(x.astype("f8") for x in (q, k, v, beta)), return_state=True)
    few = slice(0, 2000)
    exact = ref.delta(q[few], k[few], v[few], beta[few])
    close(wide[few], exact, atol=roundings(2 * DELTA_ROUNDINGS, exact))
    assert abs(o - wide).max() <= 1e-4 * abs(wide).max()
    assert abs(state.s - end.s).max() <= 1e-4 * abs(end.s).max()


def test_zero_strength():
    """Where nothing is written the error at the key still is beta's gradient."""
    case = delta_case(40, 5, 4, dtype="float64")
    q, k, v, beta, g = make(case)
    beta[::3] = 0
    grads = linattn.delta_backward(q, k, v, beta, g, **case.options)
    twin = ref.delta_backward(q, k, v, beta, g, **case.options)
    assert grads[3][::3].all()
    assert_close(grads, twin, atol=roundings(ROUNDINGS, *twin))
