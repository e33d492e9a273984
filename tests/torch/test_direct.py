"""Calls without gradients, which go past PyTorch's operators, and those that may not."""

import contextlib
from functools import partial

import pytest
import torch
from operands import STEPS
from torch.utils._python_dispatch import TorchDispatchMode
from torch_cases import EACH, call, make, one_token

import linattn.torch as la
from linattn._linattn import tensor_step
from linattn.torch._core.direct import _SEEN

X = torch.linspace(-1, 1, 40).view(2, 5, 4)


class Seen(TorchDispatchMode):
    """Counts linattn's operators that PyTorch calls."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.namespace == "linattn"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def taken(monkeypatch):
    """The results of direct calls; NotImplemented for those that the operator computed."""
    direct, results = la._core.operator.direct, []

    def spy(*args, **kwargs):
        results.append(direct(*args, **kwargs))
        return results[-1]

    monkeypatch.setattr(la._core.operator, "direct", spy)
    return results


@EACH
def test_bits(row):
    """The same as the operator's, which a dispatch mode sees."""
    operands = make(row, torch.float32)
    direct = call(la, row, operands)
    with torch.inference_mode():
        assert torch.equal(call(la, row, operands), direct)
    with Seen() as seen:
        through = call(la, row, operands)
    assert seen.count and torch.equal(direct, through)


def watched(context):
    """A call of a leaf within a context."""
    with context():
        return la.causal(X.clone().requires_grad_(), X, X)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_plain_calls_are_direct(taken, context):
    la.causal(X, X, X)
    watched(context)
    assert [x is not NotImplemented for x in taken] == [True, True]


@pytest.mark.parametrize(
    "call",
    [*(partial(watched, x) for x in (
        contextlib.nullcontext, Seen, partial(torch.autocast, "cpu", torch.bfloat16),
        torch.profiler.profile, torch.autograd.forward_ad.dual_level,
     )), lambda: torch.func.vmap(lambda x: la.causal(x, x, x))(X)],
    ids=["gradient", "dispatch mode", "autocast", "profiler", "forward mode", "vmap"],
)  # fmt: skip
def test_features_see_the_operator(taken, call):
    call()
    assert taken and {*taken} == {NotImplemented}


def test_a_new_state_shares_nothing():
    state = la.State(torch.ones(2, 4, 4))
    _, after = la.gated_step(X[:, 0], X[:, 0], X[:, 0], X[:, 0, 0], state)
    after.s.zero_()
    assert (state.s == 1).all()


def _step(name, operands, state, in_place):
    """Of clones: the output and the state."""
    state = la.State(*(None if x is None else x.clone() for x in state))
    o, after = getattr(la, STEPS[name])(*operands, state, in_place=in_place)
    return [x for x in (o, *after) if x is not None]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["causal", "delta", "gated", "gated_delta", "dplr"])
def test_plain_steps_of_operators_read_no_options_in_python(monkeypatch, name, in_place):
    """Their kernels hand all arguments to C."""
    operands, state = one_token(name)
    direct = _step(name, operands, state, in_place)
    monkeypatch.setattr(la._core.operator.OPERATORS[name], "run_step", None)
    with Seen() as seen:
        through = _step(name, operands, state, in_place)
    assert seen.count == 1
    assert all(map(torch.equal, direct, through))


@pytest.mark.parametrize("in_place", [False, True])
def test_other_steps_of_operators(in_place):
    """C leaves them to Python: the rows of this state are not contiguous."""
    (q, k, v), state = one_token("causal")
    turned = la.State(torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(4)).mT, state.z)
    direct = _step("causal", (q, k, v), turned, in_place)
    with Seen() as seen:
        through = _step("causal", (q, k, v), turned, in_place)
    assert seen.count == 1
    assert all(map(torch.equal, direct, through))


def test_versions_of_written_states():
    operands, state = one_token("causal")
    before = [x._version for x in state[:2]]
    torch.ops.linattn.step_(*operands, "elu", None, True, 1e-6, 1.0, *state)
    assert [x._version for x in state[:2]] > before


@pytest.mark.parametrize("in_place", [False, True])
def test_steps_of_negated_memory(in_place):
    """The dispatcher resolves it before a kernel reads the memory."""
    (q, k, v, beta), state = one_token("delta")
    expected = _step("delta", (q, -k, v, beta), state, in_place)
    op = torch.ops.linattn.delta_step_ if in_place else torch.ops.linattn.delta_step
    found = op(q, torch._neg_view(k), v, beta, "identity", None, 1.0, state.s)
    found = (found, state.s) if in_place else found
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize(
    "args",
    [(), (1,) * 4, *((_SEEN, step, True, (None,)) for step in ((), (8,) * 9, ("",) * 9))],
    ids=["none", "numbers", "a short step", "wrong places", "no numbers"],
)
def test_steps_that_are_refused(args):
    with pytest.raises((TypeError, IndexError)):
        tensor_step(*args)
