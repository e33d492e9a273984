"""linear_scan of complex tensors: NumPy's bits, gradients in PyTorch's convention, transforms."""

import numpy as np
import pytest
import torch

import linattn
import linattn.torch as lt
from linattn import State

N, M = 6, 3


def draw(*shape, seed=0, dtype=torch.complex128):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


A, X = draw(2, N, M), draw(2, N, M, seed=1)
CASES = {
    "both": (A, X),
    "real factors": (A.real, X),
    "factors a channel": (A[0, 0], X.real),
    "factors a token": (A[0, :, :1], X),
    "strides": (A.mT.contiguous().mT, X.mT.contiguous().mT),
    "conjugates": (A.conj(), X),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name):
    """What `test_every_case` leaves: factors of other shapes, strides and conjugates."""
    a, x = CASES[name]
    s = draw(2, M, seed=2)

    def run(a, x, s):
        h, end = lt.linear_scan(a, x, initial_state=State(s), return_state=True)
        return h, end.s

    arrays = (y.resolve_conj().numpy() for y in (a, x))
    expected, end = linattn.linear_scan(*arrays, initial_state=State(s.numpy()), return_state=True)
    for y, z in zip(run(a, x, s), (expected, end.s), strict=True):
        np.testing.assert_array_equal(y.numpy(), z)
    inputs = [y.clone().requires_grad_() for y in (a, x, s)]
    assert torch.autograd.gradcheck(run, inputs)


def test_dtypes():
    """Python's numbers determine no precision."""
    single, double = X.to(torch.complex64), X
    assert lt.linear_scan(0.5j, X.real.float()).dtype is torch.complex64
    assert lt.linear_scan(0.5, single).dtype is torch.complex64
    assert lt.linear_scan(A.real, single).dtype is torch.complex128
    assert lt.linear_scan(0.5j, double).dtype is torch.complex128
    expected = lt.linear_scan(A, X)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lt.linear_scan(A, X), expected)
        assert lt.linear_scan(A.to(torch.complex64), single).dtype is torch.complex64
    for shape in ((0, M), (N, 0)):
        assert lt.linear_scan(draw(*shape), draw(*shape)).shape == shape


def test_steps():
    state = State(draw(2, M, seed=3))
    a, x = A[:, 0], X[:, 0]
    h, _ = lt.linear_scan_step(a, x, state)
    torch.testing.assert_close(h, a * state.s + x)
    again, same = lt.linear_scan_step(a, x, state, in_place=True)
    assert same is state
    assert torch.equal(again, h) and torch.equal(state.s, h)
    with pytest.raises(ValueError, match="to be updated in place"):
        lt.linear_scan_step(a, x, State(state.s[0]), in_place=True)


def test_operators():
    """Those in torch.ops take complex tensors themselves."""
    scan, backward = torch.ops.linattn.linear_scan, torch.ops.linattn.linear_scan_backward
    args = A.conj(), X, False, False, None
    assert torch.equal(scan(*args), lt.linear_scan(A.conj(), X))
    grads = backward(X.conj(), *args)
    a, x = A.conj().clone().requires_grad_(), X.clone().requires_grad_()
    lt.linear_scan(a, x).backward(X.conj().resolve_conj())
    assert torch.equal(grads[0], a.grad) and torch.equal(grads[1], x.grad)
    torch.library.opcheck(
        scan.default, (A.clone().requires_grad_(), *args[1:]),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )  # fmt: skip


def test_transforms():
    expected = lt.linear_scan(A, X)
    compiled = torch.compile(lambda a, x: lt.linear_scan(a, x), backend="eager", fullgraph=True)
    assert torch.equal(compiled(A, X), expected)
    assert torch.equal(torch.func.vmap(lt.linear_scan)(A, X), expected)
    grad = torch.func.grad(lambda a: (lt.linear_scan(a, X).abs() ** 2).sum())(A)
    a = A.clone().requires_grad_()
    (lt.linear_scan(a, X).abs() ** 2).sum().backward()
    torch.testing.assert_close(grad, a.grad)
    state = lt.initial_state(A, X, operator="linear_scan")
    assert state.s.shape == (2, M) and state.s.dtype is torch.complex128


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: lt.linear_scan(A[..., :2], X), ValueError, "a has shape .*does not broadcast"),
        (lambda: lt.linear_scan(A[0, 0], X[0, 0]), ValueError, "broadcast to"),
        (lambda: lt.linear_scan(A.to_sparse(), X), TypeError, "a has layout"),
        (lambda: lt.linear_scan(A, X.tolist()), TypeError, "x is a list"),
        (lambda: lt.linear_scan(0.5j, 0.5), TypeError, "a is a complex"),
        (lambda: lt.linear_scan(A, X, log=1), TypeError, "log is 1"),
        (lambda: lt.linear_scan(A.to("meta"), X), TypeError, "is on"),
        (lambda: lt.linear_scan(A, X, initial_state=A), TypeError, "initial_state is a Tensor"),
        (lambda: lt.linear_scan(A, X, initial_state=State(A[0, 0, :2])), ValueError,
         "initial_state.s has shape"),
        (lambda: lt.linear_scan(A, X, initial_state=State(A[0], A[0])), ValueError,
         "initial_state.z is given"),
        (lambda: lt.linear_scan_step(A, X, None), TypeError, "state is None; .*initial_state"),
        (lambda: lt.linear_scan(A.to(torch.complex32), X), TypeError,
         "a has dtype torch.complex32; expected torch.complex64 or torch.complex128"),
        (lambda: lt.causal(A, A, A), TypeError, "q has dtype torch.complex128; expected real"),
        (lambda: lt.linear_scan_step(A[:, 0], X[:, 0], State(A[:, 0].conj()), in_place=True),
         TypeError, "s has the conjugate bit and cannot be written to"),
        (lambda: lt.linear_scan_step(A[:, 0], X[:, 0], State(A[:, 0].real), in_place=True),
         TypeError, "state.s has dtype float64; expected complex128"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
