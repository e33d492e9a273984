"""Forward-mode derivatives, which are refused; vmap over states, steps and gradients."""

import itertools

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch_cases as cases
from bounds import close
from torch.fx.experimental.proxy_tensor import make_fx
from torch_cases import EACH, EACH_RECURRENT, EACH_STEP, call, make

import linattn.torch as la

REFUSED = {"expected_exception": NotImplementedError, "match": "no forward-mode derivative"}


def dual(x):
    return forward_ad.make_dual(x, torch.ones_like(x))


@EACH
def test_tangents_are_refused(row):
    """Of each tensor, alone and by PyTorch's functions, and before a state is written."""
    for run, given in cases.forms(row):
        before = {name: x.clone() for name, x in given.items()}
        for name, x in given.items():

            def one(x, run=run, given=given, name=name):
                return run(given | {name: x})

            with forward_ad.dual_level(), pytest.raises(**REFUSED):
                one(dual(x))
            with pytest.raises(**REFUSED):
                torch.func.jvp(one, (x,), (x,))
        assert all(torch.equal(given[name], x) for name, x in before.items())


@EACH
def test_tangents_of_operands_are_refused(row):
    """Where gradients are recorded too, and under other transforms."""
    operands = make(row)
    for name, x in operands.items():

        def one(x, name=name):
            return call(la, row, operands | {name: x})

        with forward_ad.dual_level():
            with pytest.raises(**REFUSED):
                one(dual(x.clone().requires_grad_()))
            one(x)  # which has none
        with pytest.raises(**REFUSED):
            torch.func.jacfwd(one)(x)
        with pytest.raises(**REFUSED):
            torch.func.jvp(lambda x, one=one: torch.vmap(one)(x), (x[None],), (x[None],))
    operands = {name: x.requires_grad_() for name, x in operands.items()}
    o = call(la, row, operands)
    with forward_ad.dual_level(), pytest.raises(**REFUSED):
        torch.autograd.grad(o, list(operands.values()), dual(torch.ones_like(o)))
    with pytest.raises(**REFUSED):
        torch.func.jacfwd(torch.func.grad(lambda x: one(x).sum()))(x.detach())


@pytest.mark.parametrize("name", la.feature_maps.NAMES)
def test_tangents_of_maps_are_refused(name):
    with forward_ad.dual_level(), pytest.raises(**REFUSED):
        la.feature_maps.get(name)(dual(torch.ones(3, 4)))


def test_tangents_of_directions_are_refused():
    x, omega = torch.ones(3, 4), torch.ones(4, 6)
    with forward_ad.dual_level(), pytest.raises(**REFUSED):
        phi = la.feature_maps.PositiveRandomFeatures(dual(omega))
        la.causal(x, x, x, feature_map=phi)


def test_tangents_of_operators_of_the_library_are_refused():
    """As torch.compile, torch.export, autocast and PyTorch's own transforms call them."""
    x = torch.ones(3, 4)

    def raw(q):
        return torch.ops.linattn.causal(q, x, x, "elu", None, True, 1e-6, 1.0, None, None, None)

    with forward_ad.dual_level():
        for given in (x, x.clone().requires_grad_()):
            with pytest.raises(**REFUSED):
                raw(dual(given))
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(**REFUSED):
            la.causal(dual(x), x, x)
    with pytest.raises(**REFUSED):
        torch.func.jvp(raw, (x,), (x,))


@EACH
def test_functionalize(row):
    """Alone, traced, and with vmap in both orders."""
    operands = make(row)
    expected = call(la, row, operands)

    def run(operands):
        return call(la, row, operands)

    functional = torch.func.functionalize(run)
    traced = make_fx(functional)(operands)
    assert any("linattn" in str(node.target) for node in traced.graph.nodes)
    stacked = {name: x[None] for name, x in operands.items()}
    for found in (
        functional(operands),
        traced(operands),
        torch.vmap(functional)(stacked)[0],
        torch.func.functionalize(torch.vmap(run))(stacked)[0],
    ):
        close(found, expected, atol=1e-13, rtol=1e-12)


@EACH_STEP
def test_steps_in_place_under_vmap(row):
    """Every mapped state is updated, along whichever axis."""
    token = cases.token(row, make(row), 0)
    states = [cases.state(row, seed=i) for i in range(3)]
    expected = [call(la, row, token, step=True, state=cases.pack(row, x)) for x in states]
    for dim in (0, -1):
        given = {name: torch.stack([x[name] for x in states], dim) for name in states[0]}
        o = torch.vmap(
            lambda state: call(
                la, row, token, step=True, state=cases.pack(row, state), in_place=True
            )[0],
            in_dims=dim,
        )(given)
        close(o, torch.stack([o for o, _ in expected]), atol=1e-13, rtol=1e-12)
        for i, (_, after) in enumerate(expected):
            for name, x in cases.fields(after).items():
                close(given[name].select(dim, i), x, atol=1e-13, rtol=1e-12)


@EACH_STEP
def test_a_state_that_is_shared_under_vmap(row):
    token, state = cases.token(row, make(row), 0), cases.state(row)
    name = next(iter(row.letters))

    def one(x):
        return call(la, row, token | {name: x}, step=True, state=cases.pack(row, state),
                    in_place=True)[0]  # fmt: skip

    with pytest.raises(
        ValueError, match=f"{row.step}: {next(iter(state))} is not mapped over by vmap"
    ):
        torch.vmap(one)(torch.stack([token[name]] * 3))
    before = cases.state(row)
    assert all(torch.equal(x, before[field]) for field, x in state.items())


@EACH_RECURRENT
def test_states_under_vmap_of_vmap(row):
    """Of all axes, and of some; absent fields of a state need ``out_dims`` None."""
    batches = [[make(row, seed=2 * i + j) for j in range(2)] for i in range(3)]
    stacked = {x: torch.stack([torch.stack([b[x] for b in a]) for a in batches])
               for x in row.letters}  # fmt: skip
    start = cases.pack(row, cases.state(row))
    there = 0 if torch.is_tensor(start) else type(start)(*(None if x is None else 0 for x in start))

    def whole(operands):
        return call(la, row, operands, initial_state=start, return_state=True)

    def twice(f, *out_dims):
        return torch.vmap(torch.vmap(f, out_dims=out_dims), out_dims=out_dims)

    o, end = twice(whole, 0, there)(stacked)
    for i, j in itertools.product(range(3), range(2)):
        expected_o, expected = whole(batches[i][j])
        close(o[i, j], expected_o, rtol=1e-12, atol=1e-13)
        for x, y in zip(cases.outputs(end), cases.outputs(expected), strict=True):
            close(x[i, j], y, rtol=1e-12, atol=1e-13)
    if not row.step:
        return

    def step(operands):
        return call(la, row, cases.token(row, operands, 0), step=True, state=start)

    o, end = twice(step, 0, there)(stacked)
    for i, j in itertools.product(range(3), range(2)):
        for x, y in zip(cases.outputs((o, end)), cases.outputs(step(batches[i][j])), strict=True):
            close(x[i, j], y, rtol=1e-12, atol=1e-13)


@EACH
def test_batched_gradients(row):
    """As of one gradient after another: is_grads_batched, and vectorized Jacobians."""
    operands = cases.leaves(make(row))
    results = [call(la, row, operands)]
    if row.held:
        start = cases.pack(row, cases.state(row))
        o, end = call(la, row, operands, initial_state=start, return_state=True)
        results += [o, cases.outputs(end)[0]]
    for o in results:
        inputs = [x for x in operands.values() if x.is_floating_point()]
        cotangents = torch.randn(3, *o.shape, dtype=o.dtype)
        options = {"retain_graph": True, "allow_unused": True}
        found = torch.autograd.grad(o, inputs, cotangents, is_grads_batched=True, **options)
        each = [torch.autograd.grad(o, inputs, x, **options) for x in cotangents]
        for x, *expected in zip(found, *each, strict=True):
            if x is not None:
                close(x, torch.stack(expected), rtol=1e-12, atol=1e-13)
    name = next(iter(operands))
    found = torch.autograd.functional.jacobian(
        lambda x: call(la, row, operands | {name: x}).sum(tuple(range(2))),
        operands[name].detach(), vectorize=True,
    )  # fmt: skip
    assert found.shape[-operands[name].ndim :] == operands[name].shape
