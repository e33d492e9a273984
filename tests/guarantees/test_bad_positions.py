"""Bad `state_at` of every recurrence: errors that name the function and the argument."""

from inspect import signature

import numpy as np
import pytest
from table import BLOCKS, FIRST, apply, first_of

import linattn
from linattn import State

pytestmark = pytest.mark.any_isa

LEAD, N = (3, 2), 9

every_recurrence = pytest.mark.parametrize("case", FIRST + first_of(BLOCKS), ids=str)


@every_recurrence
@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        ([1.0], TypeError, "state_at has dtype float64; expected integers"),
        (3, ValueError, r"state_at has shape \(\); expected \(positions,\)"),
        ([[3]], ValueError, r"state_at has shape \(1, 1\); expected \(positions,\)"),
        ([3, N + 1], ValueError, f"state_at has values from 3 to {N + 1}; expected 0 to {N}"),
        ([-1], ValueError, f"state_at has values from -1 to -1; expected 0 to {N}"),
    ],
)
def test_wrong_positions(case, positions, error, message):
    operands, start = case.operands(LEAD, N), case.state(LEAD)
    with pytest.raises(error, match=f"^{case.name}: {message}"):
        case.forward(operands, state_at=positions)
    with pytest.raises(error, match=f"^{case.name}_backward: {message}"):
        case.backward(operands, initial_state=start, state_at=positions)


@every_recurrence
def test_wrong_calls(case):
    operands, start = case.operands(LEAD, N), case.state(LEAD)
    with pytest.raises(ValueError, match="state_at is given and return_state is False"):
        case.forward(operands, state_at=[3], return_state=False)
    with pytest.raises(ValueError, match="cu_seqlens is given; expected None, as state_at"):
        case.forward(operands, state_at=[3], cu_seqlens=[0, N])
    with pytest.raises(ValueError, match=r"grad_state.* has shape"):
        case.backward(operands, grad_state=start, state_at=[3, 4])
    with pytest.raises(TypeError, match=r"grad_state.* has dtype float32"):
        last = apply(lambda x: x.take([0], 1).astype(np.float32), start)
        case.backward(operands, grad_state=last, state_at=[3])
    out = np.empty((*LEAD, N + 1, 5))
    with pytest.raises(ValueError, match=r"out has shape .*; expected"):
        case.forward(operands, state_at=[3], out=out)


def test_gradient_of_the_wrong_kind():
    q = np.ones((N, 4))
    with pytest.raises(TypeError, match=r"grad_state is a ndarray; expected a linattn\.State"):
        linattn.delta_backward(q, q, q, q[:, 0], q, grad_state=q, state_at=[3])
    with pytest.raises(ValueError, match=r"grad_state\.z is given; expected None"):
        linattn.delta_backward(
            q, q, q, q[:, 0], q, grad_state=State(np.ones((1, 4, 4)), np.ones((1, 4))),
            state_at=[3],
        )  # fmt: skip


@every_recurrence
def test_errors_name_the_function(case):
    """The first segment is a step here, and gradients run forward: neither is named."""
    operands = case.operands(LEAD, N)
    _, state = case.forward(operands)
    _, states = case.forward(operands, state_at=[1, N])
    given = operands | case.options | {"state_at": [1, N], "initial_state": state}
    forward, backward = (getattr(linattn, case.name + x) for x in ("", "_backward"))
    wrong = {"feature_map": "x", "scale": "a", "eps": np.nan, "log": 3, "softplus": 3}
    wrong |= {"normalize": 3, "reverse": 3, "activation": "x"}
    for name in wrong.keys() & signature(forward).parameters.keys():
        bad = given | {name: wrong[name]}
        with pytest.raises((TypeError, ValueError), match=f"^{case.name}_backward: {name} is "):
            backward(**bad, grad_state=states)
        del bad["grad_out"]
        with pytest.raises((TypeError, ValueError), match=f"^{case.name}: {name} is "):
            forward(**bad, return_state=True)
