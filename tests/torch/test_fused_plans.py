"""Fused steps that update their state: the second call goes to the kernel by the first one's plan,
and gives and refuses the same."""

import numpy as np
import pytest
import torch
from fused_cases import Layer, make

import linattn
import linattn.torch
from linattn.torch._core import fused_steps

KINDS = "fused_gated_delta_step", "fused_gated_step"
LAYERS = Layer(2, 6, 5, 7), Layer(2, 4, 6, 5, taps=2, by_channel=True)
CALLS = [(KINDS[0], LAYERS[0]), (KINDS[0], LAYERS[1]), (KINDS[1], LAYERS[0])]


def tensors(operands, state, options):
    of = torch.from_numpy
    state = linattn.FusedState(*map(of, state))
    return [*map(of, operands)], state, {key: of(x) for key, x in options.items()}


def forget(kind):
    fused_steps.STEPS[kind]._plans.clear()
    fused_steps.STEPS[kind]._noted.clear()


def warm(kind, operands, state, options):
    """Leaves a plan of this call, whose state it copies."""
    forget(kind)
    copy = linattn.FusedState(*(x.clone() for x in state))
    getattr(linattn.torch, kind)(*operands, copy, **options, in_place=True)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def by_plan(monkeypatch):
    """How many calls went by a plan."""
    calls = []

    def planned(*args, run=fused_steps.planned):
        o = run(*args)
        calls.extend([o] * (o is not NotImplemented))
        return o

    monkeypatch.setattr(fused_steps, "planned", planned)
    return calls


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("kind", "layer"), CALLS)
def test_as_numpy(kind, layer, pooled, by_plan):
    numpy = make(kind, layer, dtype=np.float32)
    operands, state, options = tensors(*numpy)
    warm(kind, operands, state, options)
    place = {"in_place": True}
    if pooled:
        place = {"state_indices": torch.arange(len(state.s)) + 1}
        state = linattn.FusedState(*(torch.cat([x[:1], x]) for x in state))
    versions = [x._version for x in state]
    expected, after = getattr(linattn, kind)(*numpy[0], numpy[1], **numpy[2])
    o, new = getattr(linattn.torch, kind)(*operands, state, **options, **place)
    assert len(by_plan) == 1 and new.s is state.s and new.conv is state.conv
    np.testing.assert_array_equal(o.numpy(), expected)
    for x, y, version in zip(new, after, versions, strict=True):
        np.testing.assert_array_equal(x.numpy()[pooled:], y)
        assert x._version > version


WRONG = {
    "a parameter with leading axes": lambda s: {"A_log": torch.zeros(3, s.s.shape[1])},
    "True for a number": lambda s: {"scale": True},
    "text for a number": lambda s: {"scale": "1"},
    "a longer norm": lambda s: {"norm_weight": torch.ones(7 * s.s.numel())},
    "no filters": lambda s: {"weight": None, "bias": None},
    "another dtype": lambda s: {"A_log": torch.zeros(s.s.shape[1], dtype=torch.int32)},
    "a shared state": lambda s: {
        "state": linattn.FusedState(s.conv, s.s[:1].expand(s.s.shape))
    },
    "a wide state": lambda s: {"state": linattn.FusedState(s.conv, s.s.double())},
    "states that overlap": lambda s: {"state": linattn.FusedState(s.s, s.s)},
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_accepts_no_more(kind, what):
    operands, state, options = tensors(*make(kind, Layer(2, 6, 5, 7), dtype=np.float32))
    given = options | WRONG[what](state)

    def outcome():
        copy = given | {"state": given.get("state", state)}
        try:
            o, new = getattr(linattn.torch, kind)(*operands, **copy, in_place=True)
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error), str(error)
        return o.shape, o.dtype, new.s.dtype

    forget(kind)
    first = outcome()
    warm(kind, operands, state, options)
    assert outcome() == first


def test_groups_that_do_not_divide_other_heads():
    kind = KINDS[1]
    for heads in (6, 4):
        operands, state, options = tensors(*make(kind, Layer(2, heads, 5, 7), dtype=np.float32))
        if heads == 6:
            warm(kind, operands, state, options | {"norm_groups": 3})
    with pytest.raises(ValueError, match="norm_groups"):
        getattr(linattn.torch, kind)(
            *operands, state, **options | {"norm_groups": 3}, in_place=True
        )


def test_gates_per_channel_where_all_sizes_are_alike(by_plan):
    """A gate per channel (n, n, n) and one per head (n, n) differ in their axes alone."""
    n, kind = 8, KINDS[0]
    x, rate = torch.randn(n, 3 * n * n), torch.randn(n)
    gates = {True: torch.randn(n, n, n), False: torch.randn(n, n)}
    start, b = torch.randn(n, n, n, n), torch.randn(n, n)

    def call(channels):
        bias = torch.zeros(n, n) if channels else torch.zeros(n)
        state = linattn.FusedState(None, start.clone())
        run = getattr(linattn.torch, kind)
        return run(x, gates[channels], b, state, A_log=rate, dt_bias=bias, in_place=True)[0]

    forget(kind)
    expected = {channels: call(channels) for channels in (True, False)}
    for channels in (True, False, True):
        assert torch.equal(call(channels), expected[channels])
    assert len(by_plan) == 3
