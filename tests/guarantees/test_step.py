"""One token at a time: equal to causal, in place where asked, on states of any layout."""

import pytest
from cases import SIGNED, VARIANTS
from memory import traced
from states import assert_same, bound, compare, flat, oracle, state, tokens

import linattn
from linattn import State


def token(lead, d, m, *, dtype="float32", seed=0, normalize=True, positive=False):
    """q, k (*lead, d), v (*lead, m) and a state."""
    operands = tokens((*lead, 1, d, m), dtype=dtype, seed=seed, positive=positive)
    current = state((*lead, d, m), dtype=dtype, seed=seed, normalize=normalize)
    return [x[..., 0, :] for x in operands], current


def copy(x: State) -> State:
    return State(*(y if y is None else y.copy() for y in x))


def step_bound(operands, current, **options):
    """That of `causal` with one token."""
    rows = [x[..., None, :] for x in operands]
    o, *rest = bound("causal", rows, initial_state=current, return_state=True, **options)
    return [o[..., 0, :], *rest]


@pytest.mark.parametrize(("feature_map", "normalize", "dtype"), VARIANTS)
def test_against_the_twin(feature_map, normalize, dtype):
    options = {"feature_map": feature_map, "normalize": normalize, "scale": 0.4, "eps": 0.01}
    for lead in [(), (5,), (2, 3)]:
        for d, m in [(1, 1), (3, 4), (5, 33), (16, 64), (65, 20), (64, 65), (130, 129)]:
            operands, current = token(
                lead, d, m, dtype=dtype, normalize=normalize, positive=feature_map in SIGNED
            )
            result = flat(linattn.step(*operands, current, **options))
            expected = oracle("step", operands, state=current, **options)
            compare(result, expected, step_bound(operands, current, **options))
            assert all(x.dtype == dtype for x in result)


def test_in_place_allocates_no_state():
    operands, current = token((64,), 64, 64)
    peak, _ = traced(lambda: linattn.step(*operands, current, in_place=True))
    assert peak < current.s.nbytes / 8  # the output alone, and small change


def test_operands_in_the_state():
    """A token that is a view of the state it is written to; s is still read before it changes."""
    for pick in (
        lambda q, k, v, x: (x.s[..., 0], k, v),
        lambda q, k, v, x: (q, x.s[..., 3], v),
        lambda q, k, v, x: (q, k, x.s[..., 0, :]),
        lambda q, k, v, x: (x.z, k, v),
        lambda q, k, v, x: (q, x.z, v),
    ):
        for lead in [(), (5,)]:
            plain, current = token(lead, 16, 16)
            operands = pick(*plain, copy(current))
            expected = linattn.step(*operands, current)
            given = copy(current)
            assert_same(linattn.step(*pick(*plain, given), given, in_place=True), expected)
