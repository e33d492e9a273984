"""`state_at`: the states after some tokens are those of sequences that end there."""

from functools import partial
from itertools import pairwise

import bounds
import numpy as np
import pytest
from bounds import roundings
from slow import each, looped
from states import flat
from table import CASES, COMPLEX, FIRST, MORE, SHARED, apply, normal_like, rows, same

import linattn
from linattn import State, reference

LEAD, N = (3, 2), 9
POSITIONS = [8, 0, 3, 3, 4, N]

WITH_LENGTHS = [x for x in CASES if x.row.keys]

every_case = each(CASES + MORE)
every_recurrence = pytest.mark.parametrize("case", FIRST, ids=str)


def position(state, i, lead=LEAD):
    """The states at a position."""
    return apply(lambda x: x.take(i, len(lead)), state)


def close(result, expected, *, count=64):
    """Whether all arrays are equal up to so many roundings of their largest entries."""
    for x, y in zip(flat(result), flat(expected), strict=True):
        bounds.close(x, y, roundings(count, x, y))


def by_hand(case, operands, positions, start, **more):
    """The output and the states of calls of the tokens between two positions: of one, a step."""
    edges = sorted({0, N, *positions})
    states, outputs, state = {}, [], start
    if 0 in positions:
        _, state = states[0] = (
            None,
            case.forward(case.tokens(operands, 0, 0), initial_state=start, **more)[1],
        )
        states[0] = state
    for begin, end in pairwise(edges):
        if end - begin == 1 and state is not None and end in positions:
            t = N - end if case.options.get("reverse") else begin
            o, state = case.one_step(operands, t, state)
            o = np.expand_dims(o, len(LEAD))
        else:
            o, state = case.forward(case.tokens(operands, begin, end), initial_state=state, **more)
        outputs.append(o)
        states[end] = state
    if case.options.get("reverse"):
        outputs.reverse()
    return np.concatenate(outputs, len(LEAD)), [states[p] for p in positions]


@each(CASES + COMPLEX)
@looped(dtype=["float64", "float16"])
@looped(with_start=[True, False])
def test_equal_to_cutting_by_hand(case, dtype, with_start):
    operands = case.operands(LEAD, N, dtype=dtype)
    start = case.state(LEAD, dtype=dtype) if with_start else None
    o, states = case.forward(operands, initial_state=start, state_at=POSITIONS)
    expected, each = by_hand(case, operands, POSITIONS, start)
    assert same(o, expected)
    for i, state in enumerate(each):
        assert same(position(states, i), state)


@every_case
def test_close_to_the_sequence(case):
    operands, start = case.operands(LEAD, N), case.state(LEAD)
    o, states = case.forward(operands, initial_state=start, state_at=range(N + 1))
    close(o, case.call(operands, initial_state=start))
    for p in range(N + 1):
        _, expected = case.forward(case.tokens(operands, 0, p), initial_state=start)
        close(position(states, p), expected)


@every_recurrence
def test_later_tokens_change_no_state(case):
    operands, start = case.operands(LEAD, N), case.state(LEAD)
    _, states = case.forward(operands, initial_state=start, state_at=[2, 5])
    changed = {name: x.copy() for name, x in operands.items()}
    for name, x in case.tokens(changed, 5, N).items():
        if case.letters.get(name, "")[:1] == "n":
            x[...] = np.nan
    _, others = case.forward(changed, initial_state=start, state_at=[2, 5])
    assert same(states, others)


@every_recurrence
def test_without_leading_axes(case):
    """The states, and gradients, of the only head of an axis."""

    def headed(x):
        return apply(lambda y: y[None], x)

    operands, start = case.operands((), N), case.state(())
    one = {x: y if x in SHARED else y[None] for x, y in operands.items()}
    o, states = case.forward(operands, initial_state=start, state_at=[5, 6, N])
    more = {"state_at": [5, 6, N], "initial_state": headed(start)}
    assert same((o[None], headed(states)), case.forward(one, **more))
    *grads, last = case.backward(
        operands, initial_state=start, grad_state=states, state_at=[5, 6, N]
    )
    *expected, end = case.backward(one, grad_state=headed(states), **more)
    assert same(headed(last), end)
    assert same([x.reshape(y.shape) for x, y in zip(grads, expected, strict=True)], expected)


@every_recurrence
def test_no_position_and_no_token(case):
    operands = case.operands(LEAD, N)
    o, states = case.forward(operands, state_at=[])
    expected, last = case.forward(operands)
    assert same(o, expected)
    for x, y in zip(flat(states), flat(last), strict=True):
        assert x.shape == (*LEAD, 0, *y.shape[len(LEAD) :])
    none, start = case.operands(LEAD, 0), case.state(LEAD)
    o, states = case.forward(none, initial_state=start, state_at=[0, 0])
    assert o.shape[len(LEAD)] == 0
    assert same(position(states, 1), start)


@pytest.mark.parametrize("case", WITH_LENGTHS, ids=str)
def test_key_lengths(case):
    operands, start = case.operands(LEAD, N), case.state(LEAD)
    lengths = np.array([[4], [0], [9]])
    o, states = case.forward(operands, initial_state=start, state_at=POSITIONS, key_lengths=lengths)
    expected, last = case.forward(operands, initial_state=start, key_lengths=lengths)
    close([o, position(states, -1)], [expected, last])
    for i, p in enumerate(POSITIONS):
        cut = case.tokens(operands, 0, p)
        _, state = case.forward(cut, initial_state=start, key_lengths=np.minimum(lengths, p))
        close(position(states, i), state)


@every_recurrence
def test_outputs(case):
    """In memory of the caller, which an operand may share."""
    operands = case.operands(LEAD, N)
    expected, states = case.forward(operands, state_at=[4])
    out = np.empty_like(expected)
    o, after = case.forward(operands, state_at=[4], out=out)
    assert o is out
    assert same([o, after], [expected, states])
    name = next(x for x in operands if operands[x].shape[: len(LEAD) + 1] == (*LEAD, N))
    shape, widths = operands[name].shape[len(LEAD) + 1 :], expected.shape[len(LEAD) + 1 :]
    shared = np.zeros((*LEAD, N + 1, *np.maximum(shape, (*shape[: -len(widths)], *widths))))
    operands[name] = shared[:, :, :-1][(..., *map(slice, shape))]
    operands[name][...] = case.operands(LEAD, N)[name]
    first = (0,) * (len(shape) - len(widths))
    o, _ = case.forward(
        operands, state_at=[4], out=shared[:, :, 1:][(..., *first, *map(slice, widths))]
    )
    assert same(o, expected)


@every_recurrence
def test_pools(case):
    """The states at positions are returned, and the last one is written to the pool."""
    operands, pool, indices = case.operands(LEAD, N), case.state((7, 2)), np.array([5, 0, 3])
    own = rows(pool, indices)
    expected, states = case.forward(operands, initial_state=own, state_at=[2, N])
    options = {"state_indices": indices, "state_at": [2]}
    grads = case.backward(
        operands, initial_state=pool, grad_state=position_axis(states, 0), **options
    )
    assert same(
        grads,
        case.backward(operands, initial_state=own, grad_state=position_axis(states, 0),
                      state_at=[2]),
    )  # fmt: skip
    o, after = case.forward(operands, initial_state=pool, **options)
    assert same([o, position(after, 0)], [expected, position(states, 0)])
    assert same(rows(pool, indices), position(states, 1))


def position_axis(states, i):
    return apply(lambda x: x.take([i], len(LEAD)), states)


# --- gradients ------------------------------------------------------------------


@every_case
@looped(with_start=[True, False])
def test_gradients(case, with_start):
    """The sum of the gradients of sequences that end at the positions."""
    operands = case.operands(LEAD, N)
    start = case.state(LEAD) if with_start else None
    _, states = case.forward(operands, initial_state=start, state_at=POSITIONS)
    rng = np.random.default_rng(0)
    cotangents = apply(partial(normal_like, rng), states)
    grads = case.backward(operands, initial_state=start, grad_state=cotangents, state_at=POSITIONS)
    zeros = position(apply(np.zeros_like, cotangents), 0)
    total = flat(case.backward(operands, initial_state=start, grad_state=zeros))
    n_operands = len(case.letters)
    for i, p in enumerate(POSITIONS):
        cut = case.tokens(operands, 0, p)
        cut["grad_out"] = np.zeros_like(cut["grad_out"])
        part = flat(case.backward(cut, initial_state=start, grad_state=position(cotangents, i)))
        for j, x in enumerate(part):
            own = [*case.letters.values()][j] if j < n_operands else ""
            total[j] = total[j].copy()
            if own[:1] == "n":
                axis = total[j].ndim - len(own)
                place = slice(N - p, N) if case.options.get("reverse") else slice(0, p)
                total[j][(*(slice(None),) * axis, place)] += x
            else:
                total[j] += x
    close(grads, total, count=4096)


@every_recurrence
def test_gradients_without_those_of_states(case):
    operands, start = case.operands(LEAD, N), case.state(LEAD)
    grads = case.backward(operands, initial_state=start, state_at=[3])
    assert same(grads, case.backward(operands, initial_state=start))


@every_recurrence
def test_gradients_of_broadcast_operands_and_16_bits(case):
    """Sums over segments are rounded once."""
    operands = case.operands(LEAD, N, dtype="float16")
    name = [*case.letters][1]
    if case.name != "causal_conv1d":  # whose filters have no leading axes
        operands[name] = operands[name][:1]
    _, states = case.forward(operands, state_at=[3, 5])
    grads = case.backward(operands, grad_state=states, state_at=[3, 5])
    wide = {name: x.astype(np.float32) for name, x in operands.items()}
    expected = case.backward(wide, grad_state=states, state_at=[3, 5])
    for x, y, name in zip(grads[:-1], expected[:-1], case.letters, strict=True):
        assert x.shape == y.shape == operands[name].shape
        with np.errstate(over="ignore"):
            assert same(x, y.astype(x.dtype))


def test_broadcast_factors():
    """A factor that all tokens share is not cut."""
    rng = np.random.default_rng(0)
    a, x, g = rng.random(4), rng.standard_normal((N, 4)), rng.standard_normal((N, 4))
    for factor in (a, a[None], 0.5):
        o, states = linattn.linear_scan(factor, x, return_state=True, state_at=[3, 5])
        full = np.broadcast_to(factor, (N, 4)).copy()
        expected, same_states = linattn.linear_scan(full, x, return_state=True, state_at=[3, 5])
        assert same([o, states], [expected, same_states])
        da, dx, _ = linattn.linear_scan_backward(factor, x, g, grad_state=states, state_at=[3, 5])
        wide, dx_wide, _ = linattn.linear_scan_backward(
            full, x, g, grad_state=states, state_at=[3, 5]
        )
        assert same(dx, dx_wide)
        assert np.shape(da) == np.shape(factor)
        axes = tuple(range(2 - np.ndim(factor)))
        total = wide.sum(axes) if np.ndim(factor) < 2 else wide.sum(0, keepdims=True)
        close(da, total, count=4096)


# --- the twins ------------------------------------------------------------------


@each(CASES + COMPLEX)
def test_against_the_twin(case):
    """Rows of a pool and states at positions at once, and their gradients."""
    operands, pool, indices = case.operands(LEAD, N), case.state((7, 2)), [5, 0, 3]
    expected = [
        case.forward(operands, reference, initial_state=pool, state_indices=indices, **more)
        for more in ({}, {"state_at": POSITIONS})
    ]
    rng = np.random.default_rng(0)
    states = expected[1][1]
    if isinstance(pool, State) and not isinstance(states, tuple):  # the twins of scans
        states = State(states)
    cotangents = apply(partial(normal_like, rng), states)
    options = {"state_indices": indices, "state_at": POSITIONS}
    grads = case.backward(operands, reference, initial_state=pool, grad_state=cotangents, **options)
    given = apply(np.array, pool)
    found = case.backward(operands, initial_state=given, grad_state=cotangents, **options)
    close(found, grads, count=4096)
    result = case.forward(operands, initial_state=given, **options)
    close(result, expected[1])
    close(given, expected[0][1])


def test_lengths_in_the_output():
    """They are read before anything is written."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 6, 4))
    options = {"return_state": True, "state_at": [1, 4]}
    expected, states = linattn.causal(q, k, v, key_lengths=[3, 5], **options)
    out = np.empty_like(expected)
    lengths = out.reshape(-1).view(np.int64)[:2]
    lengths[:] = 3, 5
    o, found = linattn.causal(q, k, v, key_lengths=lengths, out=out, **options)
    np.testing.assert_array_equal(o, expected)
    np.testing.assert_array_equal(found.s, states.s)
