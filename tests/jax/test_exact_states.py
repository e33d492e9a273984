"""States of JAX's arrays that carry what rounding took."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from jax_cases import named
from slow import crossed, slow
from table import CARRIED, CASES, same

import linattn.jax as la
from linattn import ExactState, State
from linattn.jax import _custom_calls

N = 200
CUTS = [0, 64, 192, N]
EXACT = {"return_state": "exact"}
EACH = pytest.mark.parametrize(
    "case", crossed(lambda x: x.name in ("causal", "mlstm"), CARRIED), ids=str
)


def all_of(o, state):
    """The arrays of a result, and what the state has lost."""
    return [np.asarray(x) for x in (o, *jax.tree.leaves(tuple(state)), state.lost)]


def in_pieces(case, operands):
    run = jax.jit(lambda given, state: case.forward(given, la, initial_state=state, **EXACT))
    outputs, state = [], None
    for begin, end in pairwise(CUTS):
        o, state = run(named(case, case.tokens(operands, begin, end)), state)
        outputs.append(o)
    return np.concatenate(outputs, 1), state


@EACH
@pytest.mark.parametrize("dtype", ["float32", *slow("float16")])
def test_bits(case, dtype):
    """Those of arrays: in pieces, of sequences that go on, and of packed ones."""
    operands = case.operands((2,), N, d=20, m=5, dtype=dtype)
    o, state = in_pieces(case, operands)
    assert type(state) is ExactState
    assert same(all_of(o, state), all_of(*case.forward(operands, **EXACT)))
    for more in ({}, {"key_lengths": np.array([3, N])}, {"cu_seqlens": np.array([0, 70, 70, N])}):
        state = start = None
        for _ in range(2):
            o, start = case.forward(operands, initial_state=start, **EXACT, **more)
            found, state = case.forward(operands, la, initial_state=state, **EXACT, **more)
            assert same(all_of(found, state), all_of(o, start))


@EACH
def test_gradients(case):
    """Those of the call with the `State`, where what is lost has none."""
    operands = case.operands((2,), N, d=6, m=5, dtype="float32")
    _, start = case.forward(operands, la, **EXACT)

    def loss(given, state, how):
        o, end = case.forward(given, la, initial_state=state, return_state=how)
        return o.sum() + sum(x.sum() for x in end if x is not None)

    grad = jax.grad(loss, (0, 1))
    found, of_state = grad(named(case, operands), start, "exact")
    assert not np.asarray(of_state.lost).any()
    expected = grad(named(case, operands), State(*start), True)
    assert same(*([np.asarray(x) for x in jax.tree.leaves(y)]
                  for y in ((found, State(*of_state)), expected)))  # fmt: skip


@EACH
def test_the_last_piece(case):
    """It needs no state, and gives an ordinary one where that is asked for; so do steps."""
    operands = case.operands((2,), N, d=6, m=5, dtype="float32")
    o, last = case.forward(operands, la, **EXACT)
    _, state = case.forward(case.tokens(operands, 0, 128), la, **EXACT)
    rest = case.tokens(operands, 128, N)
    found, end = case.forward(rest, la, initial_state=state)
    assert type(end) is State
    assert same(all_of(found, end)[:-1], all_of(o[:, 128:], last)[:-1])
    assert same(np.asarray(case.call(rest, la, initial_state=state)), np.asarray(found))
    token = case.token(operands, 0)
    steps = [getattr(la, case.step)(**token, state=x, **case.step_options)
             for x in (state, State(*state))]  # fmt: skip
    assert [type(x) for _, x in steps] == [State, State]
    assert same(*(all_of(*x)[:-1] for x in steps))


def test_nothing_to_carry():
    """The ordinary state is exact."""
    case = next(x for x in CASES if x.name == "momentum_delta")
    operands = case.operands((2,), 9, dtype="float32")
    assert type(case.forward(operands, la, **EXACT)[1]) is State


@EACH
def test_vmap(case):
    operands = case.operands((2,), N, d=6, m=5, dtype="float32")
    lead = {name for name, x in named(case, operands).items() if x.shape[:1] == (2,)}
    given, axes = named(case, operands), {x: 0 if x in lead else None for x in case.letters}

    def f(given, state):
        return case.forward(given, la, initial_state=state, **EXACT)

    _, state = f(given, None)
    found = jax.vmap(f, (axes, 0))(given, state)
    assert same(all_of(*found), all_of(*f(given, state)))


def test_without_the_handler(monkeypatch):
    case = CARRIED[0]
    operands = case.operands((2,), N, dtype="float32")
    expected = all_of(*case.forward(operands, **EXACT))
    monkeypatch.setattr(_custom_calls, "IN_C", False)
    monkeypatch.setattr(jax, "local_device_count", lambda backend: 1)
    assert same(all_of(*case.forward(operands, la, **EXACT)), expected)


@EACH
def test_errors(case):
    operands = case.operands((2,), 64, d=6, m=5, dtype="float32")
    _, state = case.forward(operands, la, **EXACT)
    with pytest.raises(ValueError, match=f"{case.name}: return_state is 'exactly'; expected True"):
        case.forward(operands, la, return_state="exactly")
    wrong = ExactState(*state, lost=state.lost[..., :-1])
    with pytest.raises(ValueError, match=rf"{case.name}: initial_state\.lost has shape"):
        case.forward(operands, la, initial_state=wrong)
    with pytest.raises(ValueError, match=f"{case.name}: return_state is 'exact'; .*with axis_name"):
        case.forward(operands, la, axis_name="x", **EXACT)
    with pytest.raises(ValueError, match=f"{case.name}: initial_state is an ExactState; .*axis_na"):
        case.forward(operands, la, axis_name="x", initial_state=state)
