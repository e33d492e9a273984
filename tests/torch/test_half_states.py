"""States of 16 bits in PyTorch: as in NumPy, and the same where a gradient is recorded."""

import numpy as np
import pytest
import torch
from slow import each
from table import CASES, apply
from tensors import leaves
from torch import Tensor

import linattn.torch as lt
from linattn import FusedState, State
from linattn.torch import fla

HALVES = [torch.float16, torch.bfloat16]
LEAD, D, M = (3,), 16, 24

halves = pytest.mark.parametrize("half", HALVES, ids=str)
every_case = each([x for x in CASES if x.row.half_states["step"]])


def same(x, y):
    pairs = zip(leaves(x), leaves(y), strict=True)
    return all(a.dtype is b.dtype and torch.equal(a, b) for a, b in pairs)


def call_of(case, half):
    """The step, its operands, a state of 16 bits, and what the step on float32 gives, rounded."""
    operands = case.token(case.operands(LEAD, 1, d=D, m=M, dtype="float32"), 0)
    operands = {name: torch.tensor(x) for name, x in operands.items()}
    state = apply(torch.tensor, case.state(LEAD, d=D, m=M, dtype="float32"))
    state = apply(lambda x: x.to(half), state)

    # PyTorch 2.9 does not trace properties of named tuples.
    call, options = getattr(lt, case.step), case.step_options

    def step(state, **more):
        return call(**operands | more, state=state, **options)

    o, after = step(apply(Tensor.float, state))
    return step, operands, state, o, apply(lambda x: x.to(half), after)


@every_case
@halves
def test_steps(case, half):
    step, _, state, o, after = call_of(case, half)
    before = apply(Tensor.clone, state)
    found, new = step(state)
    assert torch.equal(found, o)
    assert same(new, after)
    assert same(state, before)
    found, given = step(state, in_place=True)
    assert torch.equal(found, o)
    assert given is state
    assert same(state, after)


@every_case
@halves
def test_gradients_pass_through(case, half):
    """The state is converted, by which its gradient has its dtype."""
    step, operands, state, o, after = call_of(case, half)
    first = next(iter(operands))
    recorded = apply(lambda x: x.clone().requires_grad_(), state)
    found, new = step(recorded, **{first: operands[first].clone().requires_grad_()})
    assert torch.equal(found, o)
    assert same(new, after)
    sum(x.float().sum() for x in (found, *leaves(new))).backward()
    assert all(x.grad.dtype is half for x in leaves(recorded))
    assert any(x.grad.any() for x in leaves(recorded))


@every_case
@halves
def test_rows_of_a_pool(case, half):
    step, operands, state, o, after = call_of(case, half)
    rows = torch.tensor([4, 0, 3])
    pool = apply(lambda x: torch.cat((x, x)).index_copy(0, rows, x), state)
    for recorded in (False, True):
        first = next(iter(operands))
        token = operands[first].clone().requires_grad_(recorded)
        found, new = step(apply(Tensor.clone, pool), state_indices=rows, **{first: token})
        assert torch.equal(found, o)
        assert same(apply(lambda x: x[rows], new), after)
        assert same(apply(lambda x: x[[1, 2, 5]], new), apply(lambda x: x[[1, 2, 5]], pool))


@halves
@pytest.mark.parametrize("in_place", [True, False])
def test_in_a_graph(half, in_place):
    case = next(x for x in CASES if x.name == "gated_delta")
    step, _, state, o, after = call_of(case, half)
    compiled = torch.compile(
        lambda s: step(State(s), in_place=in_place), backend="aot_eager", fullgraph=True
    )
    with torch.no_grad():
        found, new = compiled(state.s)
    assert torch.equal(found, o)
    assert torch.equal(new.s, after.s)
    assert torch.equal(state.s, after.s) == in_place


@halves
def test_sequences_of_the_convolution(half):
    rng = np.random.default_rng(0)
    x, weight, state = (
        torch.tensor(rng.standard_normal(shape), dtype=torch.float32)
        for shape in ((2, 9, M), (M, 4), (2, M, 3))
    )
    state = state.to(half)
    o, last = lt.causal_conv1d(x, weight, initial_state=state.float(), return_state=True)
    for recorded in (False, True):
        found, after = lt.causal_conv1d(
            x, weight.requires_grad_(recorded), initial_state=state, return_state=True
        )
        assert torch.equal(found, o)
        assert same(after, last.to(half))


@halves
def test_fused_steps(half):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.float32)

    c = 2 * 2 * 8 + 4 * 8
    x, a, b = draw(3, c), draw(3, 4), draw(3, 4)
    layer = {
        "A_log": draw(4), "dt_bias": draw(4), "weight": draw(c, 4), "z": draw(3, 32),
        "norm_weight": draw(8),
    }  # fmt: skip
    state = FusedState(draw(3, c, 3).to(half), draw(3, 4, 8, 8).to(half))
    o, after = lt.fused_gated_delta_step(x, a, b, apply(Tensor.float, state), **layer)
    after = apply(lambda x: x.to(half), after)
    found, new = lt.fused_gated_delta_step(x, a, b, state, **layer)
    assert torch.equal(found, o)
    assert same(new, after)
    found, new = lt.fused_gated_delta_step(x.requires_grad_(), a, b, state, **layer)
    torch.testing.assert_close(found, o)
    assert [y.dtype for y in new] == [half, half]
    lt.fused_gated_delta_step(x.detach(), a, b, state, **layer, in_place=True)
    assert same(state, after)


@halves
def test_tokens_in_the_layout_of_fla(half):
    rng = np.random.default_rng(0)
    q, k, v = (torch.tensor(rng.standard_normal((2, 1, 3, 16)), dtype=half) for _ in range(3))
    g, beta = -torch.rand(2, 1, 3), torch.rand(2, 1, 3)
    s = torch.tensor(rng.standard_normal((2, 3, 16, 16))).to(half)

    def decode(s):
        return fla.fused_recurrent_gated_delta_rule(
            q, k, v, g=g, beta=beta, initial_state=s, output_final_state=True
        )

    with torch.no_grad():
        o, after = decode(s.float())
        found, new = decode(s)
    assert torch.equal(found, o)
    assert same(new, after.to(half))
