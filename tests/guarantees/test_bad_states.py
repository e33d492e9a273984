"""Bad pools of states and bad `state_indices`: errors before anything is written."""

import numpy as np
import pytest
from fused_cases import LAYERS, make
from states import flat
from table import FIRST, apply, same

import linattn
from linattn import FusedState, State

pytestmark = pytest.mark.any_isa

P, B, H, N = 7, 3, 2, 5
INDICES = np.array([5, 0, 3])

every_recurrence = pytest.mark.parametrize("case", FIRST, ids=str)


WRONG = [
    (np.array([5.0, 0, 3]), TypeError, "state_indices has dtype float64; expected integers"),
    (np.array([True, False, True]), TypeError, "state_indices has dtype bool; expected integers"),
    (np.array([5, 0]), ValueError, r"state_indices has shape \(2,\); expected \(3,\)"),
    (np.array([[5, 0, 3]]), ValueError, r"state_indices has shape \(1, 3\); expected \(3,\)"),
    (np.array([5, 0, 7]), ValueError, "state_indices has values from 0 to 7; expected 0 to 6"),
    (np.array([5, -1, 3]), ValueError, "state_indices has values from -1 to 5; expected 0 to 6"),
    (np.array([5, 2, 5]), ValueError, "state_indices has 5 twice; expected different rows"),
]  # fmt: skip


@every_recurrence
@pytest.mark.parametrize(("indices", "error", "message"), WRONG)
def test_wrong_indices(case, indices, error, message):
    operands, pool = case.operands((B, H), N), case.state((P, H))
    before = apply(np.array, pool)
    with pytest.raises(error, match=f"^{case.step}: {message}"):
        case.one_step(operands, 0, pool, state_indices=indices)
    with pytest.raises(error, match=f"^{case.name}: {message}"):
        case.forward(operands, initial_state=pool, state_indices=indices)
    if "twice" not in message:
        with pytest.raises(error, match=f"^{case.name}_backward: {message}"):
            case.backward(operands, initial_state=pool, state_indices=indices)
    assert same(pool, before)


@every_recurrence
def test_wrong_pools(case):
    operands, pool = case.operands((B, H), N), case.state((P, H))
    before = apply(np.array, pool)

    def refused(given, error, words, arrays=operands):
        for call in (
            lambda: case.one_step(arrays, 0, given, state_indices=INDICES),
            lambda: case.forward(arrays, initial_state=given, state_indices=INDICES),
        ):
            with pytest.raises(error, match=words) as caught:
                call()
            assert str(caught.value).startswith((f"{case.step}: ", f"{case.name}: "))

    refused(None, ValueError, "state is None; expected a pool of states")
    refused(apply(lambda x: x[:, 0], pool), ValueError, r"has shape .*; expected \(rows, 2")
    refused(apply(lambda x: x.astype(np.float32), pool), TypeError, "has dtype float32; expected")
    refused(apply(lambda x: x.tolist(), pool), TypeError, "is a list; expected")
    refused("pool", TypeError, "is a str; expected")
    if case.name != "causal_conv1d":
        refused(pool[0], TypeError, rf"is a ndarray; expected a linattn.{type(pool).__name__}\(")
    fixed = apply(np.array, pool)
    for x in flat(fixed):
        x.flags.writeable = False
    refused(fixed, ValueError, "is read-only; expected a writeable array")
    refused(apply(lambda x: np.broadcast_to(x[:1], x.shape), pool), ValueError, "read-only|repeats")
    alone = {
        name: x[(0, 0)] if x.ndim > len(case.letters.get(name, "nm")) else x
        for name, x in operands.items()
    }
    refused(pool, ValueError, "the operands have no leading axes", alone)
    assert same(pool, before)


def in_one_memory(state):
    """The fields of a state, all of them from the first number of one buffer on."""
    room = np.zeros(max(x.size for x in flat(state)))
    return apply(lambda x: room[: x.size].reshape(x.shape), state)


def one_array(state):
    """The state whose fields are the same array, if they have the same shape."""
    first, *others = flat(state)
    if any(x.shape != first.shape for x in others):
        return in_one_memory(state)
    return state._replace(**dict.fromkeys(state._fields[: 1 + len(others)], 0 * first))


@every_recurrence
def test_fields_that_share_memory(case):
    """They are refused where they would be written, and nothing has been."""
    operands, pool, state = case.operands((B, H), N), case.state((P, H)), case.state((B, H))
    if len(flat(pool)) == 1:
        return
    for given, call in (
        (state, lambda x: case.one_step(operands, 0, x, in_place=True)),
        (pool, lambda x: case.one_step(operands, 0, x, state_indices=INDICES)),
        (pool, lambda x: case.forward(
            operands, initial_state=x, state_indices=INDICES, return_state=True)),
    ):  # fmt: skip
        for shared in (in_one_memory(given), one_array(given)):
            with pytest.raises(ValueError, match=r"state\.\w+ shares memory with \w+\.\w+; expect"):
                call(shared)
            assert not any(x.any() for x in flat(shared))
        first, second, *_ = given
        room = np.zeros((*first.shape[:-1], 2 * first.shape[-1]))
        apart = {given._fields[0]: room[..., ::2]}
        if second is not None and second.shape == first.shape:
            apart[given._fields[1]] = room[..., 1::2]
        call(given._replace(**apart))  # between each other's numbers


@every_recurrence
def test_pools_without_rows(case):
    operands, pool = case.operands((B, H), N), case.state((0, H))
    message = r"state_indices has values from 0 to 5; expected none, as \w*state has no rows$"
    with pytest.raises(ValueError, match=f"^{case.step}: {message}"):
        case.one_step(operands, 0, pool, state_indices=INDICES)
    with pytest.raises(ValueError, match=f"^{case.name}: {message}"):
        case.forward(operands, initial_state=pool, state_indices=INDICES)


def test_pools_whose_fields_differ():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((B, 4)) for _ in range(3))
    pool = State(np.ones((P, 4, 4)), np.ones((P - 1, 4)))
    with pytest.raises(ValueError, match=r"step: state\.z has 6 rows; expected 7, as state\.s has"):
        linattn.step(q, k, v, pool, state_indices=INDICES)
    with pytest.raises(ValueError, match=r"step: state\.z is None; expected an array"):
        linattn.step(q, k, v, State(pool.s), state_indices=INDICES)
    with pytest.raises(ValueError, match=r"step: state\.z is given; expected None"):
        linattn.step(q, k, v, pool, normalize=False, state_indices=INDICES)


@every_recurrence
def test_fields_that_no_state_of_it_has(case):
    """The reason is one of the function: most have no ``normalize``."""
    operands, state = case.operands((B, H), N), case.state((B, H))
    absent = [x for x in ("z", "log_scale") if getattr(state, x, state) is None]
    for field in absent:
        given = state._replace(**{field: np.zeros((B, H))})
        why = "for this map" if case.row.normalizer else "as {0} has no normaliser"
        message = rf"^{{0}}: \w*state\.{field} is given; expected None,? {why}$"
        with pytest.raises(ValueError, match=message.format(case.name)):
            case.forward(operands, initial_state=given)
        with pytest.raises(ValueError, match=message.format(case.name + "_backward")):
            case.backward(operands, initial_state=given)
        with pytest.raises(ValueError, match=message.format(case.step)):
            case.one_step(operands, 0, given)


def test_fields_without_a_normaliser():
    q = np.ones((N, 4))
    phi = linattn.feature_maps.PositiveRandomFeatures.sample(4, 4, rng=0)
    for feature_map in ("elu", phi):
        for field in ("z", "log_scale"):
            state = State(np.ones((4, 4)), **{field: np.ones(4)})
            message = rf"^causal: initial_state\.{field} is given; .* as normalize is False$"
            with pytest.raises(ValueError, match=message):
                linattn.causal(
                    q, q, q, feature_map=feature_map, normalize=False, initial_state=state
                )


def test_an_output_in_the_pool():
    q = np.ones((B, N, 4))
    pool = State(np.ones((P, 4, 4)))
    with pytest.raises(ValueError, match=r"^delta: out overlaps initial_state\.s; expected"):
        linattn.delta(
            q, q, q, np.ones((B, N)), initial_state=pool, state_indices=INDICES,
            return_state=True, out=pool.s.reshape(-1)[: q.size].reshape(q.shape),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["fused_gated_delta_step", "fused_gated_step"])
def test_errors_of_fused_steps(kind):
    operands, _, options = make(kind, LAYERS[1], (B,))
    _, pool, _ = make(kind, LAYERS[1], (P,))
    before, step = FusedState(*map(np.array, pool)), getattr(linattn, kind)

    def refused(error, message, state=pool, indices=INDICES):
        with pytest.raises(error, match=f"^{kind}: {message}"):
            step(*operands, state, **options, state_indices=indices)

    for indices, error, message in WRONG:
        refused(error, message, indices=indices)
    less = pool._replace(conv=pool.conv[:-1])
    refused(ValueError, r"state\.conv has 6 rows; expected 7, as state\.s has", less)
    narrow = FusedState(*(x.astype(np.float32) for x in pool))
    refused(TypeError, r"state\.s has dtype float32; expected float64", narrow)
    refused(
        ValueError, r"state\.s has shape .*; expected \(rows, 6", pool._replace(s=pool.s[:, None])
    )
    assert same(pool, before)


@every_recurrence
@pytest.mark.parametrize("value", ["no", 1, None, b"exact", []], ids=str)
def test_options_that_are_true_or_false(case, value):
    """Whatever else is given is no answer, and a state is not written to."""
    operands, state = case.operands((B, H), N), case.state((B, H))
    before = apply(np.array, state)
    with pytest.raises(
        (TypeError, ValueError), match=f"^{case.name}: return_state is .*; expected"
    ):
        case.forward(operands, return_state=value)
    with pytest.raises(TypeError, match=f"^{case.step}: in_place is .*; expected True or False"):
        case.one_step(operands, 0, state, in_place=value)
    assert same(state, before)
