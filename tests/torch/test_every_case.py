"""linattn.torch on every row of the table of cases: the NumPy package's results and gradients."""

import numpy as np
import pytest
import torch
from bounds import close
from slow import each, grid, looped
from states import flat
from table import ALL, BLOCKS, CASES, COMPLEX, RULES, allowed, apply, covering
from tensors import arrays, leaves, tensor_state, tensors

import linattn.torch as lt

EACH = each(ALL + BLOCKS)
HELD = grid(
    lambda case: case in [*covering(CASES + BLOCKS), COMPLEX[0]], case=CASES + BLOCKS + COMPLEX
)


def assert_same(result, expected):
    """The same bits; PyTorch rounds a gradient to the dtype of its tensor."""
    for x, y in zip(arrays(result), flat(expected), strict=True):
        np.testing.assert_array_equal(x, y.astype(x.dtype))


@EACH
@looped(dtype=["float16", "float32", "float64"])
def test_results_and_gradients(case, dtype):
    operands = case.operands((2, 3), 9, dtype=dtype)
    given = tensors(operands, requires_grad=True)
    o = case.call(given, lt)
    assert str(o.dtype) == f"torch.{dtype}" and o.is_contiguous()
    np.testing.assert_array_equal(o.detach().numpy(), case.call(operands))
    o.backward(torch.tensor(operands["grad_out"]))
    assert_same([given[x].grad for x in case.letters], case.backward(operands))


@HELD
def test_states(case):
    """Their gradients too."""
    operands, (start, last) = case.operands((2,), 9), (case.state((2,), seed=x) for x in (1, 2))
    tokens = tensors(operands, requires_grad=True)
    state = tensor_state(start, requires_grad=True)
    o, end = case.forward(tokens, lt, initial_state=state)
    assert_same((o, end), case.forward(operands, initial_state=start))
    given = [torch.tensor(x) for x in (operands["grad_out"], *flat(last))]
    torch.autograd.backward(leaves((o, end)), given)
    expected = case.backward(operands, initial_state=start, grad_state=last)
    grads = [*(tokens[x].grad for x in case.letters), *(x.grad for x in leaves(state))]
    assert_same(grads, expected)


@HELD
def test_gradients_of_a_step(case):
    """Those of a sequence of one token."""
    operands, start = case.operands((2,), 1), case.state((2,))
    token = tensors(case.token(operands, 0), requires_grad=True)
    state = tensor_state(start, requires_grad=True)
    o, end = getattr(lt, case.step)(**token, state=state, **case.step_options)
    torch.autograd.backward(leaves((o, end)), [torch.ones_like(x) for x in leaves((o, end))])
    ones = apply(np.ones_like, start)
    operands["grad_out"] = np.ones_like(operands["grad_out"])
    expected = case.backward(operands, initial_state=start, grad_state=ones)
    for name, x in zip(case.letters, expected, strict=False):
        y = x[:, 0] if case.letters[name][0] == "n" else x
        close(token[name].grad.numpy(), y, atol=allowed(*flat(expected)))


@pytest.mark.parametrize("option", ["cu_seqlens", "key_lengths"])
@each(RULES + BLOCKS + COMPLEX)
def test_lengths(case, option):
    """With gradients and without, given as a list and as a tensor."""
    if case.name == "linear_scan" and option == "key_lengths":
        return  # which it does not take
    lengths = {"cu_seqlens": [0, 4, 4, 9], "key_lengths": [9, 3]}[option]
    operands = case.operands(() if option == "cu_seqlens" else (2,), 9)
    tokens = tensors(operands, requires_grad=True)
    expected = case.forward(operands, **{option: lengths})
    result = case.forward(tokens, lt, **{option: torch.tensor(lengths)})
    assert_same(result, expected)
    assert_same(case.forward(tensors(operands), lt, **{option: lengths}), expected)
    result[0].backward(torch.tensor(operands["grad_out"]))
    grads = case.backward(operands, **{option: lengths})
    for name, x in zip(case.letters, grads, strict=True):
        close(tokens[name].grad.numpy(), x, atol=allowed(*grads))
