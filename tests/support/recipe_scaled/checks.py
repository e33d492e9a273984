"""Tests of the recurrence ``log_sum`` in three libraries, run where its files have been added."""

import bounds
import numpy as np
import pytest

import linattn
from linattn import State

LEAD, N, M = (2, 3), 9, 5
CUT = [0, 4, 4, N]
rng = np.random.default_rng(0)
X, G = 30 * rng.standard_normal((*LEAD, N, M)), rng.standard_normal((*LEAD, N, M))
WHOLE = np.logaddexp.accumulate(X, -2)
#: Of sum(G * WHOLE): e^x_j times the sum of g_i e^-o_i over i >= j.
GRAD = np.stack([
    (G[..., j:, :] * np.exp(X[..., j, None, :] - WHOLE[..., j:, :])).sum(-2) for j in range(N)
], -2)  # fmt: skip


def close(x, y):
    bounds.close(np.asarray(x), y, rtol=1e-12, atol=1e-12)


def test_numpy():
    close(linattn.log_sum(X), WHOLE)
    close(linattn.log_sum_backward(X, G)[0], GRAD)
    o, state = linattn.log_sum(X[..., :4, :], return_state=True)
    assert state.z is None and state.log_scale.shape == state.s.shape == (*LEAD, M)
    rest, end = linattn.log_sum(X[..., 4:, :], initial_state=state, return_state=True)
    close(np.concatenate([o, rest], -2), WHOLE)
    close(np.log(end.s) + end.log_scale, WHOLE[..., -1, :])
    packed = linattn.log_sum(X, cu_seqlens=CUT)
    close(packed[..., 4:, :], np.logaddexp.accumulate(X[..., 4:, :], -2))


def test_steps():
    state = State(np.zeros((*LEAD, M)), None, np.full((*LEAD, M), -np.inf))
    for i in range(N):
        o, after = linattn.log_sum_step(X[..., i, :], state, in_place=True)
        assert after is state
        close(o, WHOLE[..., i, :])
    with pytest.raises(TypeError, match="log_scale is a NoneType"):
        linattn.log_sum_step(X[..., 0, :], State(state.s))


def test_gradients_through_states():
    """In two parts, the gradients are those of the whole."""
    first, last = X[..., :4, :], X[..., 4:, :]
    _, state = linattn.log_sum(first, return_state=True)
    end, grad_state = linattn.log_sum_backward(last, G[..., 4:, :], initial_state=state)
    begin, _ = linattn.log_sum_backward(first, G[..., :4, :], grad_state=grad_state)
    close(np.concatenate([begin, end], -2), GRAD)


def test_torch():
    torch = pytest.importorskip("torch")
    import linattn.torch

    x = torch.tensor(X, requires_grad=True)
    o = linattn.torch.log_sum(x)
    o.backward(torch.tensor(G))
    close(o.detach(), WHOLE)
    close(x.grad, GRAD)


def test_jax():
    jax = pytest.importorskip("jax")
    import linattn.jax

    with jax.enable_x64(True):
        o, vjp = jax.vjp(jax.jit(linattn.jax.log_sum), X)
        (grad,) = vjp(jax.numpy.asarray(G))
    close(o, WHOLE)
    close(grad, GRAD)
