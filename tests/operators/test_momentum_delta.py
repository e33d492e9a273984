"""The delta rule with momentum: tokens without a key, and fla's own references."""

import numpy as np
import pytest
import table
from bounds import close

from linattn import State

(CASE,) = (x for x in table.CASES if x.name == "momentum_delta")
N, D, M = 75, 70, 37


def tokens(operands, rows):
    """The operands of these tokens, without the cotangent."""
    return [x for name, x in CASE.rows(operands, *rows).items() if name != "grad_out"]


def same(actual, expected):
    """Some roundings of the largest entry."""
    close(actual, expected, atol=table.allowed(actual, expected))


def test_tokens_without_a_key_keep_the_state():
    """They hold NaN, and the state may be inf: it is read, and stays as it was."""
    operands = CASE.operands((), N, d=D, m=M)
    for name in ("k", "v", "p", "g", "mu", "beta", "eta"):
        operands[name][40:] = np.nan
    start = State(np.ones((D, M)), np.full((D, M), np.inf))
    o, state = CASE.forward(CASE.rows(operands, 40, N), key_lengths=0, initial_state=start)
    assert table.same(state, start)
    same(o, 0.5 * operands["q"][40:] @ start.s)
    short, end = CASE.forward(CASE.rows(operands, 0, 40))
    o, state = CASE.forward(operands, key_lengths=40)
    assert table.same((o[:40], state), (short, end))
    grads = CASE.backward(operands, key_lengths=40)
    for x in grads[1:]:
        assert not x[40:].any()


@pytest.fixture
def naive():
    pytest.importorskip("triton", reason="fla imports triton")
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    return pytest.importorskip("fla.ops.momentum_delta_rule.naive", exc_type=ImportError)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_it_is_what_fla_computes(naive, form):
    torch = pytest.importorskip("torch")
    n = 128  # whole chunks
    operands = CASE.operands((2, 3), n, d=16, m=12, dtype="float32")
    first = CASE.state((2, 3), d=16, m=12, dtype="float32")
    given = tokens(operands, (0, n))
    q, k, v, p, g, mu, beta, eta = (torch.tensor(x).transpose(1, 2) for x in given)
    function = getattr(naive, f"{form}_momentum_delta_rule_ref")
    want, last = function(
        q=q, k=k, v=v, p=p, log_alpha=g, log_mu=mu, beta=beta, eta=eta, scale=0.5,
        initial_S=torch.tensor(first.s), initial_M=torch.tensor(first.z),
        output_final_state=True,
    )  # fmt: skip
    o, state = CASE.forward(operands, initial_state=first)
    # float32 in another order; the chunks' logarithms of beta have 1e-6 added
    tolerance = 1e-5 if form == "recurrent" else 1e-3
    pairs = (o, want.transpose(1, 2)), (state.s, last[0]), (state.z, last[1])
    for x, y in pairs:
        close(x, y.numpy(), atol=tolerance * float(y.abs().max()))
