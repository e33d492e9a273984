"""Calls without gradients, which go past PyTorch's operators, and those that may not."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_cases import EACH, ROWS, call, make  # noqa: E402

import linattn.torch as la  # noqa: E402

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
    with Seen() as seen:
        through = call(la, row, operands)
    assert seen.count and torch.equal(direct, through)


def test_plain_calls_are_direct(taken):
    la.causal(X, X, X)
    leaf = X.clone().requires_grad_()
    with torch.no_grad():
        la.causal(leaf, X, X)
    with torch.inference_mode():
        la.causal(X, X, X)
    assert [x is not NotImplemented for x in taken] == [True, True, True]


@pytest.mark.parametrize(
    "context",
    [
        Seen,
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.profiler.profile,
        torch.autograd.forward_ad.dual_level,
    ],
    ids=["dispatch mode", "autocast", "profiler", "forward mode"],
)
def test_features_see_the_operator(taken, context):
    with context():
        la.causal(X, X, X)
    assert taken == [NotImplemented]


def test_transforms_see_the_operator(taken):
    torch.func.vmap(lambda x: la.causal(x, x, x))(X)
    assert taken and set(taken) == {NotImplemented}


def test_gradients_take_the_operator(taken):
    leaf = X.clone().requires_grad_()
    assert la.causal(leaf, X, X).grad_fn is not None and taken == [NotImplemented]


def test_a_new_state_shares_nothing():
    state = la.State(torch.ones(2, 4, 4))
    _, after = la.gated_step(X[:, 0], X[:, 0], X[:, 0], X[:, 0, 0], state)
    after.s.zero_()
    assert (state.s == 1).all()


@pytest.mark.parametrize("row", ROWS[:2], ids=str)
def test_wrong_operands_have_the_operators_messages(row):
    operands = make(row)
    operands["k"] = operands["k"][..., :-1, :]
    with pytest.raises(ValueError, match="causal: k has shape"):
        call(la, row, operands)
