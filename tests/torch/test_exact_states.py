"""States of tensors that carry what rounding took."""

import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from slow import grid
from states import flat
from table import BLOCKS, CARRIED, CASES, same
from tensors import arrays, leaves, step, tensor_state, tensors

import linattn.torch as lt
from linattn import ExactState, State, feature_maps

N = 200
CUTS = [0, 64, 192, N]
EXACT = {"return_state": "exact"}
CARRYING = [x for x in CASES if x.row.compensated]


def all_of(o, state):
    """The arrays of a result, and what the state has lost."""
    return [*arrays([o, state]), *arrays([x for x in [state.lost] if x is not None])]


def in_pieces(case, operands, **more):
    outputs, state = [], None
    for begin, end in pairwise(CUTS):
        piece = case.tokens(operands, begin, end)
        o, state = case.forward(piece, lt, initial_state=state, **(EXACT | more))
        outputs.append(o)
    return torch.cat(outputs, 1), state


@pytest.mark.parametrize("case", CARRYING, ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_bits(case, dtype, requires_grad):
    """Those of arrays: in pieces, of sequences that go on, and of packed ones."""
    operands = case.operands((2,), N, d=20, m=5, dtype=dtype)
    given = tensors(operands, requires_grad=requires_grad)
    o, state = in_pieces(case, given)
    assert type(state) is ExactState and not state.lost.requires_grad
    assert same(all_of(o, state), expected_of(*case.forward(operands, **EXACT)))
    for more in ({}, {"key_lengths": [3, N]}, {"cu_seqlens": [0, 70, 70, N]}):
        state = start = None
        for _ in range(2):
            o, start = case.forward(operands, initial_state=start, **EXACT, **more)
            found, state = case.forward(given, lt, initial_state=state, **EXACT, **more)
            assert same(all_of(found, state), expected_of(o, start))


def expected_of(o, state):
    return [o, *flat([state]), state.lost]


@pytest.mark.parametrize("case", CARRIED, ids=str)
def test_strides(case):
    """Tensors (batch, tokens, heads, width), transposed."""
    given = tensors(case.operands((2, 3), N, d=6, m=5, dtype="float32"))
    lead = [x for x in given if given[x].ndim > 3]
    laid = given | {x: given[x].transpose(1, 2).contiguous().transpose(1, 2) for x in lead}
    assert same(all_of(*case.forward(laid, lt, **EXACT)), all_of(*case.forward(given, lt, **EXACT)))


@pytest.mark.parametrize("block", [4, 64])
@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_blocks(case, block):
    case = case.having(block=block)
    given = tensors(case.operands((2,), N, d=20, m=5, dtype="float32"))
    assert same(all_of(*in_pieces(case, given)), all_of(*case.forward(given, lt, **EXACT)))


@pytest.mark.parametrize("case", CARRIED, ids=str)
def test_gradients(case):
    """Those of the call with the `State`, where what is lost has none."""
    operands, (start, last) = case.operands((2,), 128), (case.state((2,), seed=x) for x in (1, 2))
    found = []
    for carry in (True, False):
        given, state = (
            tensors(operands, requires_grad=True),
            tensor_state(start, requires_grad=True),
        )
        grad_out = given.pop("grad_out").detach()
        wanted = [*given.values(), *leaves(state)]
        if carry:
            lost = torch.zeros_like(case.forward(given, lt, **EXACT)[1].lost)
            state = ExactState(*state, lost=lost)
        result = case.forward(
            given, lt, initial_state=state, return_state="exact" if carry else True
        )
        grads = [grad_out, *map(torch.tensor, flat([last]))]
        found.append([*torch.autograd.grad(leaves(result), wanted, grads)])
    assert same(*map(arrays, found))


@pytest.mark.parametrize("case", CARRIED, ids=str)
def test_the_last_piece(case):
    """It needs no state, and gives an ordinary one where that is asked for."""
    given = tensors(case.operands((2,), N, d=6, m=5, dtype="float32"))
    o, last = case.forward(given, lt, **EXACT)
    _, state = case.forward(case.tokens(given, 0, 128), lt, **EXACT)
    rest = case.tokens(given, 128, N)
    found, end = case.forward(rest, lt, initial_state=state)
    assert type(end) is State
    assert same(arrays([found, end]), arrays([o[:, 128:], last]))
    assert torch.equal(case.call(rest, lt, initial_state=state), found)
    _, after = step(case, given, 0, state)
    assert type(after) is State
    assert same(arrays(after), arrays(step(case, given, 0, State(*state))[1]))


@pytest.mark.parametrize("case", [x for x in CASES if not x.row.compensated], ids=str)
def test_nothing_to_carry(case):
    """The ordinary state is exact."""
    given = tensors(case.operands((2,), 9))
    _, state = case.forward(given, lt, **EXACT)
    assert type(state) is type(case.forward(given, lt)[1])


@grid(lambda case: case.name in ("gated_delta", "mlstm"), case=CARRIED)
def test_compiled(case):
    """States go into graphs and come out of them, in one graph."""
    given = tensors(case.operands((2,), N, dtype="float32"), requires_grad=True)
    grad_out, function = given.pop("grad_out").detach(), getattr(lt, case.name)
    with torch.no_grad():
        _, state = case.forward(given, lt, **EXACT)
    torch._dynamo.reset()

    def call(given, state):
        o, end = function(**given, **case.options, initial_state=state, **EXACT)
        return o, function(**given, **case.options, initial_state=end, return_state=True)[0], end

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for start in (None, state):
        results = [f(given, start) for f in (call, compiled)]
        grads = [torch.autograd.grad(x[0], [*given.values()], grad_out) for x in results]
        assert type(results[1][2]) is ExactState
        assert not results[1][2].lost.requires_grad
        found, expected = ([*arrays(x[:2]), *all_of(x[0], x[2])] for x in results)
        assert same(found, expected)
        assert same(*map(arrays, grads))


def test_transforms_and_files():
    """What consists of tensors: for vmap, torch.func and torch.export, and for torch.load."""
    x = torch.randn(3, N, 4)
    f = torch.nn.Module()
    f.forward = lambda x, state: lt.mlstm(
        x, x, x, x[..., 0], x[..., 1], initial_state=state, **EXACT
    )
    _, state = f(x, None)
    expected = all_of(*f(x, state))
    assert same(all_of(*torch.vmap(f)(x, state)), expected)
    program = torch.export.export(f, (x, state))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert same(all_of(*program.module()(x, torch.load(file))), expected)
    assert torch.func.grad(lambda x: f(x, state)[1].s.sum())(x).isfinite().all()


@pytest.mark.parametrize("case", CARRIED, ids=str)
def test_errors(case):
    given = tensors(case.operands((2,), 64, d=6, m=5, dtype="float32"))
    _, state = case.forward(given, lt, **EXACT)
    name = case.name
    with pytest.raises(ValueError, match=f"{name}: return_state is 'exactly'; expected True, Fals"):
        case.forward(given, lt, return_state="exactly")
    wrong = (
        (state.lost[..., :-1], ValueError, "has"),
        (state.lost.numpy(), TypeError, "is a ndarray"),
    )
    for lost, error, what in wrong:
        with pytest.raises(error, match=rf"{name}: initial_state\.lost {what}"):
            case.forward(given, lt, initial_state=ExactState(*state, lost=lost))
    with pytest.raises(ValueError, match=f"{name}: return_state is 'exact'; .* with state_indices"):
        case.forward(given, lt, state_at=[3], **EXACT)
    with pytest.raises(ValueError, match=f"{name}: initial_state is an ExactState; expected"):
        case.forward(given, lt, state_at=[3], initial_state=state)
    for written in ({"in_place": True}, {"state_indices": torch.tensor([1, 0])}):
        with pytest.raises(ValueError, match="state is an ExactState; expected"):
            step(case, given, 0, state, **written)


def test_maps_that_rescale():
    q = torch.randn(64, 6)
    phi = feature_maps.PositiveRandomFeatures.sample(6, 16, rng=0)
    with pytest.raises(ValueError, match=r"causal: return_state is 'exact'; .* map that rescales"):
        lt.causal(q, q, q, feature_map=phi, **EXACT)
    o, state = lt.causal(q, q, q, feature_map=phi, normalize=False, **EXACT)
    assert type(state) is ExactState
    assert np.isfinite(o.numpy()).all()
