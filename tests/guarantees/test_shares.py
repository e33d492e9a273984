"""How many heads are shared between how many threads: evenly, and with the same bits."""

import numpy as np
import pytest
from slow import grid, slow
from table import ATTENTION, first_of

import linattn
from linattn import _linattn

pytestmark = [pytest.mark.any_isa, pytest.mark.unsanitized]

CASES = [x for x in first_of(ATTENTION) if x.name != "momentum_delta"]
#: No thread waits for longer than this part of a call.
MOST = 0.1


def call(case, heads, n, d, *, by_token=False):
    """A call; by token: of a view of (n, heads, d)."""
    operands = case.operands((heads,), n, d=d, m=d, dtype="float32")
    if by_token:
        operands = {x: y.swapaxes(0, 1).copy().swapaxes(0, 1) for x, y in operands.items()}
    return case.call(operands)


def waiting(case, heads, threads):
    """The part of a call that a thread waits for others, if shares of a stage take as long.

    First come the stages of the heads that are left over, in one job; then the other heads, whole
    ones.
    """
    _linattn.take_jobs()
    call(case, heads, 2048, 64)
    jobs = _linattn.take_jobs()
    took, over = 0.0, heads
    if heads >= threads:
        whole, lanes = jobs.pop()
        took, over = float(-(-whole // lanes)), heads - whole
    for shares, lanes in jobs:
        # Of each head and group: its length, its beginning, a state per thread of the head, and
        # four times as many shares of chunks, which are prepared and finished.
        each = -(-lanes // over)
        assert lanes == threads and shares % (over * (2 + each + 2 * 4 * each)) == 0
        took += over / threads * -(-over * each // lanes) / (over * each / lanes)
    return 1 - heads / threads / took


@pytest.mark.parametrize("heads", [1, 4, 16, 20, 33, *slow(65, 161)])
@pytest.mark.parametrize("case", [x for x in CASES if x.name in ("causal", "gated_delta")], ids=str)
def test_shares_are_even(threads, case, heads):
    threads(16)
    assert waiting(case, heads, 16) < MOST


@grid(
    lambda case, shared, by_token: (
        by_token == (shared[0] == 4) and (shared[0] < 16 or case.name in ("causal", "gated"))
    ),
    case=CASES,
    shared=[(2, 3), (2, 7), (4, 9), (16, 17), (16, 20), (16, 33)],
    by_token=[False, True],
)
def test_bits(threads, case, shared, by_token):
    """The heads that are left over are split, the others not; they may be interleaved."""
    count, heads = shared
    n = 2048 if count == 16 else 600
    threads(1)
    expected = call(case, heads, n, 64, by_token=by_token)
    threads(count)
    np.testing.assert_array_equal(call(case, heads, n, 64, by_token=by_token), expected)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_token_of_few_sequences_is_shared_by_heads(threads, batch):
    heads, d = 32, 128
    rng = np.random.default_rng(0)
    x, a = (rng.standard_normal((batch, m), np.float32) for m in (3 * heads * d, heads))
    rate = np.zeros(heads, np.float32)
    start = rng.standard_normal((batch, heads, d, d), np.float32)
    results = []
    for count in (1, 16):
        threads(count)
        state = linattn.FusedState(None, start.copy())
        _linattn.take_jobs()
        options = {"A_log": rate, "dt_bias": rate, "in_place": True}
        o, _ = linattn.fused_gated_delta_step(x, a, a, state, **options)
        results.append((o, state.s, _linattn.take_jobs()))
    assert [lanes for *_, jobs in results for _, lanes in jobs] == [16]
    assert results[1][2][0][0] >= 16
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
