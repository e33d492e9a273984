"""The gated delta rule and DPLR in parts: splits, packed sequences, key lengths, steps."""

from itertools import pairwise

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, close, roundings
from gated_calls import GATES, backward, both, forward, states
from rules import (
    DTYPES,
    KINDS,
    compare,
    make,
    part,
    token,
)  # fmt: skip

import linattn
from linattn import State
from linattn.reference import gated_rules as ref


@pytest.mark.parametrize("gates", ["weak", "resets"])
@KINDS
def test_split_anywhere(kind, gates):
    """A sequence cut at t goes on from its state; and so does the gradient, backwards."""
    case = kind._replace(n=50, lead=(2,), gates=gates)
    arrays = make(case)
    whole = both(linattn, case, arrays)
    for t in range(0, case.n + 1, 3):
        first, second = part(case, arrays, 0, t), part(case, arrays, t, case.n)
        early = forward(linattn, case, first)
        start = State(early["s"])
        late = forward(linattn, case, second, initial_state=start)
        grads = backward(linattn, case, second, initial_state=start)
        between = State(grads.pop("ds"))
        before = backward(linattn, case, first, grad_state=between)
        joined = {"o": np.concatenate([early["o"], late["o"]], -2), "s": late["s"]}
        for name in grads:
            axis = -2 if name[1:] in case.rows else -1
            joined[name] = np.concatenate([before[name], grads[name]], axis)
        compare(joined, whole)


@KINDS
def test_packed_sequences(kind):
    case = kind._replace(n=90, lead=(2,), gates="resets")
    arrays = make(case)
    bounds = np.array([0, 1, 1, 17, 50, 50, 90])
    first, last = states(case, (len(bounds) - 1,))
    packed = both(linattn, case, arrays, cu_seqlens=bounds, initial_state=first, grad_state=last)
    for r, (begin, end) in enumerate(pairwise(bounds)):
        alone = both(
            linattn, case, part(case, arrays, begin, end),
            initial_state=State(first.s[:, r]), grad_state=State(last.s[:, r]),
        )  # fmt: skip
        for name, x in alone.items():
            if name in ("s", "ds"):
                y = packed[name][:, r]
            else:
                rows = name == "o" or name[1:] in case.rows
                y = packed[name][:, begin:end, :] if rows else packed[name][:, begin:end]
            np.testing.assert_array_equal(x, y, err_msg=name)


@KINDS
def test_packed_chunks_of_one_token(kind):
    """The scratch of all tokens does for a part of them, whose square roots fall otherwise."""
    case = kind._replace(n=260, d=4, m=4, dtype="float32")
    arrays = make(case)
    arrays["g"] = np.full_like(arrays["g"], -100)
    packed = both(linattn, case, arrays, cu_seqlens=[0, 256, 260])
    alone = both(linattn, case, part(case, arrays, 0, 256))
    for name in alone.keys() - {"s"}:
        np.testing.assert_array_equal(packed[name][:256], alone[name], err_msg=name)


@KINDS
def test_key_lengths(kind):
    """What lies past them may hold anything, does not decay, and its gradient is 0."""
    lengths = np.array([0, 13, 16, 40])
    case = kind._replace(lead=(4,))
    arrays = make(case)
    first, last = states(case)
    more = {"key_lengths": lengths, "initial_state": first, "grad_state": last}
    expected = both(ref, case, arrays, **more)
    bad = {name: x.copy() for name, x in arrays.items()}
    for head, length in enumerate(lengths):
        for name, x in bad.items():
            if name not in ("q", "grad_out"):
                x[head, length:] = np.nan
    actual = both(linattn, case, bad, **more)
    compare(actual, expected)
    for head, length in enumerate(lengths):
        for name in actual.keys() - {"o", "s", "dq", "ds"}:
            assert not actual[name][head, length:].any(), name


@pytest.mark.parametrize("gates", GATES)
@KINDS
def test_step(kind, gates):
    """Token by token, in place or not, it is the same as all at once."""
    for dtype in DTYPES:
        for d, m in [(5, 3), (64, 64), (17, 70)]:
            case = kind._replace(n=20, d=d, m=m, lead=(2,), gates=gates, dtype=dtype)
            arrays = make(case)
            wide = {name: x.astype(np.longdouble) for name, x in arrays.items()}
            expected = forward(ref, case, wide)
            allowed = roundings(DELTA_ROUNDINGS, *expected.values(), dtype=dtype)
            state, mine = (State(np.zeros((2, d, m), dtype)) for _ in "ab")
            step = getattr(linattn, f"{case.rule}_step")
            for i in range(case.n):
                one = token(case, arrays, i)
                o, state = step(**one, state=state, **case.options)
                again, kept = step(**one, state=mine, **case.options, in_place=True)
                np.testing.assert_array_equal(o, again)
                assert kept is mine
                close(o, expected["o"][:, i], atol=allowed)
            np.testing.assert_array_equal(state.s, mine.s)
            close(state.s, expected["s"], atol=allowed)


@pytest.mark.parametrize("name", ["gated_delta_step", "dplr_step"])
def test_steps_without_keys(name):
    """d = 0: a gate that forgets all has nowhere to be written to, and the output is 0."""
    empty, v, g = np.zeros((2, 0)), np.ones((2, 3)), np.full(2, -np.inf)
    extras = (g, np.ones(2)) if name == "gated_delta_step" else (empty, empty, g)
    o, _ = getattr(linattn, name)(empty, empty, v, *extras, State(np.zeros((2, 0, 3))))
    np.testing.assert_array_equal(o, np.zeros((2, 3)))
