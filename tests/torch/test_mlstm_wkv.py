"""mLSTM and RWKV-4's attention on tensors: results, gradients, states, steps."""

import numpy as np
import pytest

import linattn
from linattn import State

torch = pytest.importorskip("torch")
lt = pytest.importorskip("linattn.torch")


def leaf(*shape, least=None):
    x = torch.randn(*shape, dtype=torch.float64)
    return (x if least is None else x.abs() + least).requires_grad_()


def operands(name):
    """Operands and a state of the function of that name."""
    torch.manual_seed(0)
    if name == "mlstm":
        tokens = leaf(2, 7, 3), leaf(2, 7, 3), leaf(2, 7, 4), leaf(2, 7), leaf(2, 7)
        return tokens, (leaf(2, 3, 4), leaf(2, 3), leaf(2))
    tokens = leaf(2, 7, 4), leaf(2, 7, 4), leaf(4), leaf(4)
    return tokens, (leaf(2, 4), leaf(2, 4, least=1), leaf(2, 4))


@pytest.mark.parametrize("name", ["mlstm", "wkv"])
def test_results_are_those_of_arrays(name):
    tokens, fields = operands(name)
    arrays = [x.detach().numpy() for x in tokens]
    start = State(*(x.detach().numpy() for x in fields))
    expected, last = getattr(linattn, name)(*arrays, initial_state=start, return_state=True)
    o, end = getattr(lt, name)(*tokens, initial_state=State(*fields), return_state=True)
    np.testing.assert_array_equal(o.detach().numpy(), expected)
    for x, y in zip(end, last, strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), y)


@pytest.mark.parametrize(("name", "options"), [("mlstm", {}), ("mlstm", {"eps": 0.1}), ("wkv", {})])
@pytest.mark.parametrize("more", [{}, {"cu_seqlens": torch.tensor([0, 3, 7])}], ids=str)
def test_gradients(name, options, more):
    tokens, fields = operands(name)
    if more:
        fields = [torch.stack([x, x], 1) for x in fields]
    f, count = getattr(lt, name), len(tokens)

    def call(*x):
        state = State(*x[count:])
        o, end = f(*x[:count], initial_state=state, return_state=True, **options, **more)
        return o, *end

    inputs = [x.detach().requires_grad_() for x in (*tokens, *fields)]
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradcheck(lambda *x: f(*x, **options), inputs[:count])


@pytest.mark.parametrize("name", ["mlstm", "wkv"])
def test_gradients_of_a_step(name):
    tokens, fields = operands(name)
    axes = {"mlstm": (1, 1, 1, 1, 1), "wkv": (1, 1, None, None)}[name]
    f, count = getattr(lt, f"{name}_step"), len(tokens)
    token = [x if i is None else x.select(i, 0) for x, i in zip(tokens, axes, strict=True)]
    inputs = [x.detach().clone().requires_grad_() for x in (*token, *fields)]

    def call(*x):
        o, end = f(*x[:count], State(*x[count:]))
        return o, *end

    assert torch.autograd.gradcheck(call, inputs)
