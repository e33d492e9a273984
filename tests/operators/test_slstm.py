"""sLSTM alone: what its state means, gates of any size, and bits in batches."""

import numpy as np
import pytest
from bounds import close, roundings
from states import flat
from table import CASES, same

import linattn
from linattn import SLSTMState, reference

(CASE,) = (x for x in CASES if x.name == "slstm")


def test_the_first_token_sets_m_to_its_input_gate():
    x = np.zeros((1, 4, 2, 3))
    x[0, 0] = -700.0
    _, state = linattn.slstm(x, np.zeros((4, 2, 3, 3)), np.zeros((4, 2, 3)), return_state=True)
    assert (state.m == -700).all()
    assert (state.n == 1).all()


def test_where_n_is_0_nothing_has_been_written():
    operands = CASE.operands((), 4, d=3)
    state = CASE.state((), d=3)
    wild = state._replace(c=state.c + 100, n=0 * state.n, m=state.m - 1e6)
    zero = state._replace(c=0 * state.c, n=0 * state.n, m=0 * state.m)
    assert same(
        CASE.forward(operands, initial_state=wild), CASE.forward(operands, initial_state=zero)
    )
    *_, d = CASE.backward(operands, initial_state=wild)
    assert d.h.any()
    assert not (d.c.any() or d.n.any() or d.m.any())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [100.0, 1e4])
def test_gates_of_any_size(dtype, size):
    """No overflow, and the values of the twin."""
    operands = CASE.operands((2,), 30, d=5, dtype=dtype)
    operands["x"][:, :, :2] *= operands["x"].dtype.type(size)
    got = CASE.results(operands)
    expected = CASE.results({x: y.astype("g") for x, y in operands.items()}, reference)
    assert all(np.isfinite(x).all() for x in got)
    # Weights e^(i - m) are off by the rounding of their exponents.
    close(got[0], expected[0], atol=roundings(64 * size, expected[0], dtype=dtype))


def test_gates_of_minus_infinity():
    """An input gate of -inf writes nothing, a forget gate of -inf forgets all."""
    operands = CASE.operands((), 6, d=3)
    operands["R"] *= 0
    operands["x"][2, 0] = -np.inf
    operands["x"][4, 1] = -np.inf
    h, twin = CASE.call(operands), CASE.call(operands, reference)
    assert np.isfinite(h).all()
    close(h, twin, roundings(32, twin))
    _, before = CASE.forward(CASE.rows(operands, 0, 2))
    _, after = CASE.forward(CASE.rows(operands, 2, 3), initial_state=before)
    close(after.c / after.n, before.c / before.n, roundings(8, before.c / before.n))
    alone, _ = CASE.forward(CASE.rows(operands, 4, 6))
    close(h[4:], alone, roundings(32, alone))
    nothing = CASE.operands((), 3, d=3)
    nothing["x"][:, 0] = -np.inf
    assert not CASE.call(nothing).any()
    assert all(np.isfinite(x).all() for x in flat(CASE.backward(nothing)))


@pytest.mark.parametrize("count", [1, 3])
def test_sequences_have_the_bits_that_they_have_alone(threads, count):
    """Whether R is shared by 1, 3, 16 or 40 sequences, or each has its own."""
    threads(count)
    whole = CASE.operands((40,), 70, d=20, dtype="float32")
    shared = whole | {"R": whole["R"][:1], "b": whole["b"][:1]}
    start, last = (CASE.state((40,), d=20, dtype="float32", seed=x) for x in (1, 2))
    for operands in (shared, whole):
        one = {x: len(y) > 1 for x, y in operands.items()}
        h, end = CASE.forward(operands, initial_state=start)
        dx, dR, db, dstart = CASE.backward(operands, initial_state=start, grad_state=last)
        for rows in (slice(3, 4), slice(5, 8), slice(0, 16)):
            some = {x: y[rows] if one[x] else y for x, y in operands.items()}
            first, grad = (SLSTMState(*(x[rows] for x in y)) for y in (start, last))
            assert same(
                CASE.forward(some, initial_state=first),
                (h[rows], SLSTMState(*(x[rows] for x in end))),
            )
            dy, dS, dc, dfirst = CASE.backward(some, initial_state=first, grad_state=grad)
            assert same([dy, dfirst], [dx[rows], SLSTMState(*(x[rows] for x in dstart))])
            if one["R"]:
                assert same([dS, dc], [dR[rows], db[rows]])


def test_gaps_between_sequences_are_zeros():
    """Of gufuncs, whose sequences need not cover all tokens."""
    operands = CASE.operands((), 6, d=3)
    ends = np.array([0, 4]), np.array([2, 5])
    state = [np.zeros((2, 2, 3)) for _ in range(4)]
    given = [operands[x] for x in CASE.letters]
    h, *_ = linattn.ufuncs.slstm_state(*given, *ends, *state)
    dx, *_ = linattn.ufuncs.slstm_state_backward(
        *given, operands["grad_out"], *ends, *state, *state
    )
    for x in (h, dx):
        assert x[[0, 1, 4]].any(axis=tuple(range(1, x.ndim))).all()
        assert not x[[2, 3, 5]].any()


def test_another_number_of_gates():
    operands = CASE.operands((), 3, d=3)
    three = {x: y[:, :3] if x == "x" else y[:3] for x, y in operands.items()}
    three["grad_out"] = operands["grad_out"]
    with pytest.raises(ValueError, match=r"slstm: x has shape \(3, 3, 2, 3\); expected .*4"):
        CASE.call(three)
    with pytest.raises(ValueError, match=r"slstm_step: x has shape \(3, 2, 3\)"):
        linattn.slstm_step(three["x"][0], three["R"], three["b"], CASE.state((), d=3))
