"""Initial and final states: a sequence cut anywhere continues, forward and backward."""

import copy
import pickle

import numpy as np
import pytest
from cases import SIGNED, VARIANTS
from states import assert_same, check, flat, state, tokens

import linattn
from linattn import FusedState, State

SIZES = [(1, 1, 1), (3, 4, 16), (17, 5, 33), (40, 16, 64), (67, 65, 20), (34, 20, 100)]


def case(n, d, m, lead=(), dtype="float32", feature_map="elu", normalize=True, grad=False, seed=0):
    """Operands and options of a call with an initial state (and a final gradient)."""
    positive = feature_map in SIGNED and normalize
    operands = tokens((*lead, n, d, m), dtype=dtype, positive=positive, cotangent=grad, seed=seed)
    options = {"feature_map": feature_map, "normalize": normalize, "scale": 0.4, "eps": 0.01}
    core = (*lead, d, m)
    options["initial_state"] = state(core, dtype=dtype, normalize=normalize, seed=seed)
    if grad:
        options["grad_state"] = state(core, dtype=dtype, normalize=normalize, seed=seed + 1)
    else:
        options["return_state"] = True
    return operands, options


@pytest.mark.parametrize("name", ["causal", "causal_backward"])
@pytest.mark.parametrize(("feature_map", "normalize", "dtype"), VARIANTS)
def test_against_the_twin(name, feature_map, normalize, dtype):
    for n, d, m in SIZES:
        operands, options = case(n, d, m, (), dtype, feature_map, normalize, grad=name != "causal")
        for x in check(name, operands, **options):
            assert x.dtype == dtype


def test_what_is_printed():
    """Shapes and dtypes, whatever the fields are; the rest is a tuple's."""
    s, z = np.ones((7, 4, 3), np.float32), np.ones((7, 4))
    assert repr(State(s, z)) == "State(s=<7 x 4 x 3 float32>, z=<7 x 4 float64>, log_scale=None)"
    assert str([State(z[0, 0], [1])]) == "[State(s=<float64>, z=[1], log_scale=None)]"
    assert repr(FusedState(None, s)) == "FusedState(conv=None, s=<7 x 4 x 3 float32>)"
    for given in (State(s, z), FusedState(z, s)):
        assert tuple(given) == given and given._replace(s=z).s is z
        for same in (pickle.loads(pickle.dumps(given)), copy.deepcopy(given)):
            assert type(same) is type(given)
            assert_same(same, given)


def test_states_pickled_before_modules_had_rooms():
    for text, same in (
        (b"\x80\x04\x8c\x0elinattn._state\x8c\x05State\x93K\x01NN\x87\x81.", linattn.State(1)),
        (
            b"\x80\x04\x8c\x0elinattn._fused\x8c\nFusedState\x93K\x01K\x02\x86\x81.",
            linattn.FusedState(1, 2),
        ),
    ):
        assert pickle.loads(text) == same


def test_states_of_scalars():
    """Of one sequence of a batch, mLSTM's log_scale is a scalar: it is read as an array is."""
    rng = np.random.default_rng(0)
    q, k, v = operands = rng.standard_normal((3, 5, 4))
    gates = rng.standard_normal((2, 5))
    _, batch = linattn.mlstm(
        *np.stack([operands] * 2, 1), *np.stack([gates] * 2, 1), return_state=True
    )
    state = State(*(x[0] for x in batch))
    assert isinstance(state.log_scale, np.float64)
    calls = {
        "forward": lambda x: linattn.mlstm(
            *operands, *gates, initial_state=x, return_state=True, state_at=[2, 5]
        ),
        "exact": lambda x: linattn.mlstm(*operands, *gates, initial_state=x, return_state="exact"),
        "backward": lambda x: linattn.mlstm_backward(
            *operands, *gates, v, initial_state=x, grad_state=x
        ),
        "step": lambda x: linattn.mlstm_step(q[0], k[0], v[0], *gates[:, 0], x),
    }
    for call in calls.values():
        assert_same(flat(call(state)), flat(call(State(*map(np.asarray, state)))))
    with pytest.raises(ValueError, match=r"^mlstm_step: state\.log_scale is read-only; expected"):
        linattn.mlstm_step(q[0], k[0], v[0], *gates[:, 0], state, in_place=True)
