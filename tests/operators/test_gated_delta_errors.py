"""Wrong input of the gated delta rule and DPLR: errors that name the argument."""

import numpy as np
import pytest

import linattn
from linattn import State

GOOD = {
    "q": np.ones((2, 5, 4)), "k": np.ones((2, 5, 4)), "v": np.ones((2, 5, 3)),
    "g": np.zeros((2, 5)), "beta": np.ones((2, 5)), "grad_out": np.ones((2, 5, 3)),
}  # fmt: skip


def refuse(operator, error, *words, **changed):
    """The call fails, and its message holds every word."""
    given = {**GOOD, **changed}
    if operator == "gated_delta":
        del given["grad_out"]
    with pytest.raises(error) as caught:
        getattr(linattn, operator)(**given)
    for word in (f"{operator}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"


@pytest.mark.parametrize("operator", ["gated_delta", "gated_delta_backward"])
def test_bad_input(operator):
    for shape in [(), (2, 4), (2, 5, 3), (2, 5, 2), (5, 4), (2, 3)]:
        refuse(operator, ValueError, "g has", str(shape), "(..., 5)", "(..., 5, 4)",
               g=np.ones(shape))  # fmt: skip
    for shape in [(2, 5), (2, 5, 3), (2, 4, 4), (4,)]:
        refuse(operator, ValueError, "erase has", str(shape), "(..., 5, 4)", erase=np.ones(shape))
    refuse(operator, ValueError, "g has", "(3, 5)", "(2,)", g=np.ones((3, 5)))
    refuse(operator, ValueError, "beta has", "(2, 4)", beta=np.ones((2, 4)))
    refuse(operator, TypeError, "g has", "complex", g=np.ones((2, 5), complex))
    refuse(operator, TypeError, "g is a masked", g=np.ma.ones((2, 5)))
    refuse(operator, TypeError, "erase", "complex", erase=np.ones((2, 5, 4), complex))
    refuse(operator, ValueError, "feature_map", "elu", feature_map="tanh")
    refuse(operator, ValueError, "scale", scale=np.nan)
    refuse(operator, ValueError, "key_lengths", "6", key_lengths=6)
    refuse(operator, ValueError, "initial_state.s", "(2, 3, 3)", "(2, 4, 3)",
           initial_state=State(np.zeros((2, 3, 3))))  # fmt: skip


def test_bad_step():
    good = {"q": np.ones((2, 4)), "k": np.ones((2, 4)), "v": np.ones((2, 3)), "g": np.zeros(2),
            "beta": np.ones(2), "state": State(np.zeros((2, 4, 3)))}  # fmt: skip
    for error, words, changed in [
        (ValueError, ("g has", "(2, 3)", "(..., 4)"), {"g": np.ones((2, 3))}),
        (ValueError, ("beta has", "(2, 4)", "(..., 3)"), {"beta": np.ones((2, 4))}),
        (ValueError, ("erase has", "(2, 3)", "(..., 4)"), {"erase": np.ones((2, 3))}),
        (ValueError, ("state.s", "(2, 3, 4)"), {"state": State(np.zeros((2, 3, 4)))}),
    ]:
        with pytest.raises(error) as caught:
            linattn.gated_delta_step(**{**good, **changed})
        words = ("gated_delta_step: ", *words)
        assert all(word in str(caught.value) for word in words), caught.value
