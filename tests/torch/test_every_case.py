"""linattn.torch on every row of the table of cases: the NumPy package's results and gradients."""

import numpy as np
import pytest
from bounds import close
from states import flat
from table import ALL, BLOCKS, CASES, RULES, allowed, apply

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
lt = pytest.importorskip("linattn.torch")

EACH = pytest.mark.parametrize("case", ALL + BLOCKS, ids=str)
HELD = pytest.mark.parametrize("case", CASES + BLOCKS, ids=str)


def leaves(operands, state=None):
    """Tensors of the operands that require gradients, and those of a state."""
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in operands.items()}
    if isinstance(state, np.ndarray):
        return tensors, torch.tensor(state, requires_grad=True)
    fields = (None if x is None else torch.tensor(x, requires_grad=True) for x in state or ())
    return tensors, type(state)(*fields) if state is not None else None


def tensors_of(result):
    """Those of a result and of its states."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [y for x in result if x is not None for y in tensors_of(x)]


def assert_same(result, expected):
    """The same bits; PyTorch rounds a gradient to the dtype of its tensor."""
    for x, y in zip(tensors_of(result), flat(expected), strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), y.astype(x.detach().numpy().dtype))


@EACH
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_and_gradients(case, dtype):
    operands = case.operands((2, 3), 9, dtype=dtype)
    tensors, _ = leaves(operands)
    o = case.call(tensors, lt)
    np.testing.assert_array_equal(o.detach().numpy(), case.call(operands))
    o.backward(torch.tensor(operands["grad_out"]))
    assert_same([tensors[x].grad for x in case.letters], case.backward(operands))


@HELD
def test_states(case):
    """Their gradients too."""
    operands, (start, last) = case.operands((2,), 9), (case.state((2,), seed=x) for x in (1, 2))
    tensors, state = leaves(operands, start)
    o, end = case.forward(tensors, lt, initial_state=state)
    assert_same((o, end), case.forward(operands, initial_state=start))
    given = [torch.tensor(x) for x in (operands["grad_out"], *flat(last))]
    torch.autograd.backward(tensors_of((o, end)), given)
    expected = case.backward(operands, initial_state=start, grad_state=last)
    assert_same([*(tensors[x].grad for x in case.letters),
                 *(x.grad for x in tensors_of(state))], expected)  # fmt: skip


@HELD
def test_gradients_of_a_step(case):
    """Those of a sequence of one token."""
    operands, start = case.operands((2,), 1), case.state((2,))
    token = {
        name: torch.tensor(x, requires_grad=True) for name, x in case.token(operands, 0).items()
    }
    _, state = leaves({}, start)
    o, end = getattr(lt, case.step)(**token, state=state, **case.step_options)
    torch.autograd.backward(
        [o, *tensors_of(end)], [torch.ones_like(x) for x in (o, *tensors_of(end))]
    )
    ones = apply(np.ones_like, start)
    operands["grad_out"] = np.ones_like(operands["grad_out"])
    expected = case.backward(operands, initial_state=start, grad_state=ones)
    for name, x in zip(case.letters, expected, strict=False):
        y = x[:, 0] if case.letters[name][0] == "n" else x
        close(token[name].grad.numpy(), y, atol=allowed(*flat(expected)))


@pytest.mark.parametrize("case", RULES + BLOCKS, ids=str)
def test_packed_sequences(case):
    operands = case.operands((), 9)
    tensors, _ = leaves(operands)
    bounds = torch.tensor([0, 4, 4, 9])
    o, end = case.forward(tensors, lt, cu_seqlens=bounds)
    assert_same((o, end), case.forward(operands, cu_seqlens=[0, 4, 4, 9]))
