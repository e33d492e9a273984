"""Wrong input of the convolution: errors that name the argument."""

import numpy as np
import pytest

import linattn

BAD = [
    (ValueError, "weight", "(5, 4)", {"weight": np.ones((5, 4))}),
    (ValueError, "weight", "(3, 0)", {"weight": np.ones((3, 0))}),
    (ValueError, "weight", "(3,)", {"weight": np.ones(3)}),
    (ValueError, "weight", "(4, 3, 2)", {"x": np.ones((2, 6, 3)), "weight": np.ones((4, 3, 2))}),
    (ValueError, "bias", "(4,)", {"bias": np.ones(4)}),
    (ValueError, "bias", "()", {"bias": 1.0}),
    (ValueError, "x", "(3,)", {"x": np.ones(3)}),
    (TypeError, "x", "complex", {"x": np.ones((6, 3), complex)}),
    (ValueError, "activation", "'gelu'", {"activation": "gelu"}),
    (TypeError, "activation", "True", {"activation": True}),
    (TypeError, "activation", "array", {"activation": np.ones(2)}),
    (ValueError, "initial_state", "(3, 2)", {"initial_state": np.ones((3, 2))}),
    (ValueError, "initial_state", "(2, 3, 3)", {"initial_state": np.ones((2, 3, 3))}),
    (TypeError, "initial_state", "float32", {"initial_state": np.ones((3, 3), "f4")}),
    (TypeError, "initial_state", "list", {"initial_state": [[0.0] * 3] * 3}),
    (ValueError, "cu_seqlens", "5", {"cu_seqlens": [0, 5]}),
]


@pytest.mark.parametrize(("error", "argument", "shown", "changed"), BAD, ids=lambda x: str(x)[:30])
def test_bad_input_names_the_argument(error, argument, shown, changed):
    good = {"x": np.ones((6, 3)), "weight": np.ones((3, 4))}
    out = np.full((6, 3), 7.0)
    with pytest.raises(error) as caught:
        linattn.causal_conv1d(**{**good, "out": out, **changed})
    assert "causal_conv1d: " in str(caught.value)
    assert argument in str(caught.value)
    assert shown in str(caught.value)
    assert (out == 7).all()
    with pytest.raises(error, match=argument):
        linattn.causal_conv1d_backward(**{**good, "grad_out": out, **changed})


def test_bad_gradients_and_states():
    x, weight = np.ones((6, 3)), np.ones((3, 4))
    with pytest.raises(ValueError, match="grad_out has shape"):
        linattn.causal_conv1d_backward(x, weight, np.ones((5, 3)))
    with pytest.raises(ValueError, match="grad_state has shape"):
        linattn.causal_conv1d_backward(x, weight, x, grad_state=np.ones((3, 4)))
    with pytest.raises(ValueError, match="out has shape"):
        linattn.causal_conv1d(x, weight, out=np.ones((5, 3)))
    for state, error, words in (
        (np.ones((3, 2)), ValueError, "state has shape"),
        (np.ones((3, 3), "f4"), TypeError, "state has dtype"),
        (np.broadcast_to(1.0, (3, 3)), ValueError, "state is read-only"),
        (np.ones((1, 3, 3)), ValueError, "state has shape"),
    ):
        with pytest.raises(error, match=words):
            linattn.causal_conv1d_step(x[0], weight, state, in_place=True)
