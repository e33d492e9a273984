"""mLSTM: values and gradients against the twin, states, gates of any size, errors."""

import bounds
import numpy as np
import pytest
from bounds import close_to_largest as close
from states import assert_same

import linattn
from linattn import State
from linattn.reference import xlstm as ref

N, D, M = 37, 8, 21


def draw(*lead, n=N, d=D, m=M, dtype=np.float64, size=1.0, seed=0):
    """q, k, v, i, f and a cotangent."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, *lead, n, d))
    v, g = rng.standard_normal((2, *lead, n, m))
    i, f = size * rng.standard_normal((2, *lead, n))
    return tuple(x.astype(dtype) for x in (q, k, v, i, f, g))


def draw_state(*lead, d=D, m=M, dtype=np.float64, normalize=True, seed=1):
    rng = np.random.default_rng(seed)
    s, z = rng.standard_normal((*lead, d, m)), rng.standard_normal((*lead, d))
    top = rng.standard_normal(lead)
    return State(s.astype(dtype), z.astype(dtype) if normalize else None, top.astype(dtype))


@pytest.mark.parametrize("size", [100.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_of_any_size(size, dtype):
    q, k, v, i, f, g = draw(2, dtype=dtype, size=size)
    i[0, 3:6], f[1, 7], f[1, 9] = -np.inf, np.inf, -np.inf
    o, last = linattn.mlstm(q, k, v, i, f, return_state=True)
    expected, expected_last = ref.mlstm(q, k, v, i, f, return_state=True)
    assert np.isfinite(o).all() and np.isfinite(last.s).all()
    bounds.close(last.log_scale, expected_last.log_scale, rtol=1e-5, atol=1e-5)
    # A weight's exponent is a difference of gates; z.q may cancel, and then o is large.
    tolerance = 16 * np.finfo(dtype).eps * size
    big = np.abs(expected).max(-1, keepdims=True)
    bounds.close((o - expected) / (1 + big**2), np.zeros_like(o), atol=tolerance)
    got = linattn.mlstm_backward(q, k, v, i, f, g)
    assert all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize("gate", [-1e4, 1e4])
def test_equal_large_gates(gate):
    """With all input gates alike, and large, it is a weighted mean; small, nearly 0."""
    q, k, v, i, f, _ = draw()
    i[:] = gate
    k = q = np.abs(q)
    o = linattn.mlstm(q, k, v, i, f + 20)
    if gate < 0:
        np.testing.assert_array_equal(o, 0)
    else:
        assert (np.abs(o) <= np.abs(v).max() * (1 + 1e-12)).all()


@pytest.mark.parametrize(("gate", "size"), [(150.0, 1e-30), (-150.0, 1e30), (60.0, 1.0)])
def test_sums_are_finite_where_their_scale_is_not(gate, size):
    """Without the normaliser o = e^m s^T q, of which e^m alone may overflow or vanish."""
    q, k, v, i, f, _ = draw(2, dtype=np.float32)
    i[0] += np.float32(gate)
    q[0] *= np.float32(size**0.5)
    v[0] *= np.float32(size**0.5)
    f[:, 0] = -np.inf  # m begins at 0
    operands = q, k, v, i, f + 3
    expected = ref.mlstm(*(x.astype(np.float64) for x in operands), normalize=False)
    o = linattn.mlstm(*operands, normalize=False)
    state = State(np.zeros((2, D, M), "f"), None, np.zeros(2, "f"))
    for t in range(N):
        one, state = linattn.mlstm_step(*(x[:, t] for x in operands), state, normalize=False)
        for x in (o[:, t], one):
            error = np.abs(x - expected[:, t]).max(-1)
            assert (error <= 1e-4 * np.abs(expected[:, t]).max(-1)).all()


def test_only_sums_that_are_too_large_are_infinite():
    q, k, v, i, f, _ = draw(dtype=np.float32)
    i[:], q[:9] = 1e4, 0
    o = linattn.mlstm(q, k, v, i, f, normalize=False)
    np.testing.assert_array_equal(o[:9], 0)
    assert np.isinf(o[9:]).all()


def test_slow_forgetting_token_by_token():
    """A state's running maximum is rounded, to more than what a token forgets."""
    n = 5000
    q, k, v, i, f, _ = draw(n=n, d=2, m=3, dtype=np.float32)
    q, k, f = np.abs(q) + 1, np.abs(k) + 1, np.full_like(f, 8)
    i[0], i[1:], v[n // 2 :] = 40, 37, v[n // 2 :] + 1
    expected = ref.mlstm(*(x.astype(np.float64) for x in (q, k, v, i, f)))
    state = State(*(np.zeros(x, "f") for x in ((2, 3), 2, ())))
    got = np.empty_like(v)
    for t in range(n):
        got[t], state = linattn.mlstm_step(q[t], k[t], v[t], i[t], f[t], state, in_place=True)
    bounds.close(got, expected, rtol=0, atol=16 * n**0.5 * 2.0**-24)


def test_a_forget_gate_of_minus_infinity_resets_the_memory():
    q, k, v, i, f, _ = draw()
    k[3], f[9] = np.nan, -np.inf
    o = linattn.mlstm(q, k, v, i, f)
    assert np.isnan(o[3:9]).all()
    close(o[9:], ref.mlstm(q[9:], k[9:], v[9:], i[9:], f[9:]), np.float64)


def large_gates(dtype, to, n=64):
    """Input gates near a large number, on the grid of numbers there, and near 1000 alike."""
    q, k, v, i, f, g = draw(n=n, dtype=dtype)
    grid = np.round(4 * i) * np.spacing(dtype(to))
    large, near = (np.asarray(x + grid, dtype) for x in (dtype(to), dtype(1000)))
    return (np.abs(q), np.abs(k), v, large, f, g), near


@pytest.mark.parametrize("to", [1e2, 1e4, 1e7, 1e9, 1e30])
def test_large_gates_cut_and_resumed(to):
    """The state's log scale has few digits behind the point here."""
    (q, k, v, i, f, g), _ = large_gates(np.float32, to)
    o, last = linattn.mlstm(q, k, v, i, f, return_state=True)
    *whole, _ = linattn.mlstm_backward(q, k, v, i, f, g, grad_state=draw_state(dtype=np.float32))
    _, states = linattn.mlstm(q, k, v, i, f, return_state=True, state_at=range(len(i)))
    for cut in range(1, len(i)):
        parts = [[x[:cut] for x in (q, k, v, i, f)], [x[cut:] for x in (q, k, v, i, f)]]
        first, state = linattn.mlstm(*parts[0], return_state=True)
        _, end = linattn.mlstm(*parts[1], initial_state=state, return_state=True)
        for kept in (state, State(*(x[cut, ...] for x in states))):
            resumed = linattn.mlstm(*parts[1], initial_state=kept)
            close(resumed, o[cut:], np.float32, 4)
        close(first, o[:cut], np.float32, 4)
        for x, y in ((end.s, last.s), (end.z, last.z)):
            close(x, y, np.float32, 16)
        assert end.log_scale == last.log_scale
        *_, dstate = linattn.mlstm_backward(
            *parts[1], g[cut:], initial_state=state, grad_state=draw_state(dtype=np.float32)
        )
        *got, _ = linattn.mlstm_backward(*parts[0], g[:cut], grad_state=dstate)
        for x, y in zip(got, whole, strict=True):
            close(x, y[:cut], np.float32, 512)


@pytest.mark.parametrize(("dtype", "to"), [(np.float32, 3e6), (np.float64, 1e15)])
def test_gates_that_differ_by_a_constant(dtype, to):
    """Where e^-m vanishes only differences of gates matter."""
    (q, k, v, i, f, g), near = large_gates(dtype, to)
    close(linattn.mlstm(q, k, v, i, f), linattn.mlstm(q, k, v, near, f), dtype, 4)
    got, wanted = (linattn.mlstm_backward(q, k, v, x, f, g) for x in (i, near))
    for x, y in zip(got, wanted, strict=True):
        close(x, y, dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_an_input_gate_of_minus_infinity_writes_nothing(bad, normalize):
    """Whatever the token's key and value are."""
    q, k, v, i, f, g = draw()
    masked = [0, 3, 17, N - 1]
    i[masked] = -np.inf
    expected, last = linattn.mlstm(q, k, v, i, f, normalize=normalize, return_state=True)
    wanted = linattn.mlstm_backward(q, k, v, i, f, g, normalize=normalize)
    k[masked[:2]], v[masked[1:]] = bad, bad
    o, state = linattn.mlstm(q, k, v, i, f, normalize=normalize, return_state=True)
    np.testing.assert_array_equal(o, expected)
    np.testing.assert_array_equal(state.s, last.s)
    got = linattn.mlstm_backward(q, k, v, i, f, g, normalize=normalize)
    assert_same(got, wanted)
    close(o, ref.mlstm(q, k, v, i, f, normalize=normalize), np.float64)
    state = draw_state(normalize=normalize)
    o, after = linattn.mlstm_step(q[3], k[3], v[3], i[3], f[3], state, normalize=normalize)
    assert np.isfinite(o).all() and np.isfinite(after.s).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 7, 15])
def test_no_channels_of_keys(m, dtype):
    """The rows of s and z together, of which there are none, would fill whole vectors."""
    *operands, g = draw(2, n=5, d=0, m=m, dtype=dtype)
    first, last = (draw_state(2, d=0, m=m, dtype=dtype, seed=seed) for seed in (1, 4))
    states = {"initial_state": first, "grad_state": last}
    *got, start = linattn.mlstm_backward(*operands, g, eps=0.25, **states)
    *wanted, expected = ref.mlstm_backward(*operands, g, eps=0.25, **states)
    for x, y in zip((*got, *start), (*wanted, *expected), strict=True):
        assert x.shape == y.shape
        close(x, y, dtype)


def test_a_long_sequence_keeps_the_running_maximum():
    """65,536 tokens that forget little: float32 against float64."""
    q, k, v, i, f, _ = draw(n=65536, d=4, m=4, dtype=np.float32)
    q, k, f = np.abs(q), np.abs(k), f + 8
    wide = linattn.mlstm(*(x.astype(np.float64) for x in (q, k, v, i, f)))
    bounds.close(linattn.mlstm(q, k, v, i, f), wide, rtol=0, atol=2e-5)


@pytest.mark.any_isa
def test_it_is_what_transformers_computes():
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    q, k, v, i, f, _ = draw(2, 3, n=64, d=8, m=16, dtype=np.float32)
    tensors = [torch.from_numpy(x) for x in (q, k, v, i, f)]
    names = dict(zip(("query", "key", "value", "igate", "fgate"), tensors, strict=True))
    expected, state = modeling.mlstm_chunkwise_native_autograd(
        **names, return_last_states=True, eps=1e-6
    )
    o, last = linattn.mlstm(q, k, v, i, f, eps=1e-6, return_state=True)
    bounds.close(o, expected.numpy(), rtol=1e-4, atol=1e-4)
    for x, y in zip(last, state, strict=True):
        bounds.close(x, y.numpy().reshape(x.shape), rtol=1e-4, atol=1e-4)
