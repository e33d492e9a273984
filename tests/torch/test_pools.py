"""`state_indices` and `state_at` of tensors: NumPy's results, and gradients."""

import numpy as np
import pytest
import torch
from fused_cases import LAYERS, make
from slow import each, slow
from states import flat
from table import BLOCKS, CASES, FIRST, apply, first_of, rows, same
from tensors import arrays, leaves, step, tensor_state, tensors

import linattn.torch
from linattn import FusedState, State

P, LEAD, N = 7, (3, 2), 5
INDICES = np.array([5, 0, 3])
OTHERS = np.setdiff1d(np.arange(P), INDICES)

every_case = each(CASES + first_of(BLOCKS))
every_recurrence = pytest.mark.parametrize("case", FIRST, ids=str)


@every_case
def test_steps(case):
    operands, pool = case.operands(LEAD, N), case.state((P, 2))
    given, indices = tensor_state(pool), torch.tensor(INDICES)
    with torch.no_grad():
        for t in range(2):
            o, after = step(case, tensors(operands), t, given, state_indices=indices)
            expected, _ = case.one_step(operands, t, pool, state_indices=INDICES)
            assert after is given
            assert same(arrays([o, after]), [expected, pool])


@every_case
def test_sequences(case):
    operands, pool = case.operands(LEAD, N), case.state((P, 2))
    given = tensor_state(pool)
    options = {"state_indices": INDICES, "state_at": [N, 0, 1]}
    with torch.no_grad():
        for more in ({}, options, {"state_indices": INDICES}):
            start = {"initial_state": given if "state_indices" in more else None}
            result = case.forward(tensors(operands), linattn.torch, **start, **more)
            start = {"initial_state": pool if "state_indices" in more else None}
            expected = case.forward(operands, **start, **more)
            assert same(arrays(result), flat(expected))
            assert same(arrays(given), pool)


@every_recurrence
def test_packed_sequences(case):
    bounds = [0, 2, 2, N]
    operands, pool = case.operands((2,), N), case.state((2, P))
    given = tensor_state(pool)
    options = {"state_indices": INDICES, "cu_seqlens": bounds}
    result = case.forward(tensors(operands), linattn.torch, initial_state=given, **options)
    expected = case.forward(operands, initial_state=pool, **options)
    assert same(arrays(result), flat(expected))


@every_case
def test_gradients_through_rows(case):
    """Those of a call on rows, and the cotangents of rows that it does not use."""
    operands, pool = case.operands(LEAD, N), case.state((P, 2))
    arrays_, given = tensors(operands, requires_grad=True), tensor_state(pool, requires_grad=True)
    before = arrays(given)
    o, after = case.forward(
        arrays_, linattn.torch, initial_state=given, state_indices=torch.tensor(INDICES)
    )
    assert after is not given
    assert same(arrays(given), before)
    rng = np.random.default_rng(0)
    last = apply(lambda x: rng.standard_normal(x.shape), pool)
    expected_o, expected = case.forward(operands, initial_state=rows(pool, INDICES))
    assert same(arrays([o, rows_of(after)]), [expected_o, expected])
    cotangents = arrays_["grad_out"].detach(), *map(torch.tensor, flat(last))
    torch.autograd.backward(leaves((o, after)), cotangents)
    grads = case.backward(
        operands, initial_state=rows(pool, INDICES), grad_state=rows(last, INDICES)
    )
    found = [arrays_[name].grad for name in case.letters]
    assert same(arrays(found), flat(grads[:-1]))
    for x, y, z in zip(leaves(given), flat(last), flat(grads[-1]), strict=True):
        assert same(x.grad.numpy()[OTHERS], y[OTHERS])
        assert same(x.grad.numpy()[INDICES], z)


def rows_of(state):
    return [x[INDICES] for x in leaves(state)]


@every_case
def test_gradients_of_states_at_positions(case):
    operands, pool = case.operands(LEAD, N), case.state(LEAD)
    arrays_, given = tensors(operands, requires_grad=True), tensor_state(pool, requires_grad=True)
    positions = {"state_at": [N, 1]}
    o, states = case.forward(arrays_, linattn.torch, initial_state=given, **positions)
    rng = np.random.default_rng(0)
    cotangents = [rng.standard_normal(x.shape) for x in leaves(states)]
    given_cotangents = arrays_["grad_out"].detach(), *map(torch.tensor, cotangents)
    torch.autograd.backward(leaves((o, states)), given_cotangents)
    whole = iter(cotangents)
    last = apply(lambda x: next(whole), pool)
    grads = case.backward(operands, initial_state=pool, grad_state=last, **positions)
    found = [*(arrays_[name].grad for name in case.letters), *(x.grad for x in leaves(given))]
    for x, y in zip(arrays(found), flat(grads), strict=True):
        assert x.shape == y.shape
        assert np.abs(x - y).max() <= 1e-13 * (1 + np.abs(y).max())


@every_recurrence
def test_gradients_of_steps(case):
    operands, pool = case.operands(LEAD, 1), case.state((P, 2))
    arrays_, given = tensors(operands, requires_grad=True), tensor_state(pool, requires_grad=True)
    with pytest.raises(RuntimeError, match=f"{case.step}: in_place is True and an operand"):
        step(case, arrays_, 0, given, state_indices=INDICES, in_place=True)
    o, after = step(case, arrays_, 0, given, state_indices=INDICES)
    own = tensor_state(rows(pool, INDICES))
    with torch.no_grad():
        expected = step(case, arrays_, 0, own)
    assert same(arrays([o, rows_of(after)]), arrays(expected))
    (o.sum() + leaves(after)[0].sum()).backward()
    assert (leaves(given)[0].grad[OTHERS] == 1).all()


@every_recurrence
def test_positions_and_indices_while_a_gradient_is_recorded(case):
    """The call would return the states at the positions, and the new pool would be lost."""
    operands, pool = case.operands(LEAD, N), case.state((P, 2))
    plain, recorded = tensors(operands), tensors(operands, requires_grad=True)
    more = {"state_indices": INDICES, "state_at": [4, 1]}
    words = f"^{case.name}: state_indices and state_at are given and an operand requires grad"
    for given, start in ((recorded, tensor_state(pool)),
                         (plain, tensor_state(pool, requires_grad=True))):  # fmt: skip
        with pytest.raises(RuntimeError, match=words):
            case.forward(given, linattn.torch, initial_state=start, **more)
        assert same(arrays(start), pool)
    with torch.no_grad():
        case.forward(recorded, linattn.torch, initial_state=tensor_state(pool), **more)


def test_the_write_is_seen_by_autograd():
    x, pool = torch.ones(3, 4), torch.ones(P, 4, 4)
    weight = torch.ones((), requires_grad=True)
    y = weight * pool
    linattn.torch.delta_step(
        x, x, x, torch.ones(3), State(pool), state_indices=torch.tensor(INDICES)
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_complex_scan():
    rng = np.random.default_rng(0)
    a, x = (rng.standard_normal((3, N, 4)) + 1j * rng.standard_normal((3, N, 4)) for _ in range(2))
    pool = State(rng.standard_normal((P, 4)) + 0j)
    given = tensor_state(pool)
    options = {"state_indices": INDICES, "return_state": True}
    o, after = linattn.torch.linear_scan(
        torch.tensor(a), torch.tensor(x), initial_state=given, **options
    )
    expected, _ = linattn.linear_scan(a, x, initial_state=pool, **options)
    assert same(arrays([o, after]), [expected, pool])
    options = {"state_at": [3, 1], "return_state": True, "reverse": True}
    result = linattn.torch.linear_scan(torch.tensor(a), torch.tensor(x), **options)
    assert same(arrays(result), flat(linattn.linear_scan(a, x, **options)))


@pytest.mark.parametrize("name", ["gated_delta", *slow("selective_scan", "causal_conv1d")])
def test_compiled(name):
    """Without graph breaks; the pool is an argument that is written."""
    case = next(x for x in FIRST if x.name == name)
    operands, pool = tensors(case.operands(LEAD, N)), case.state((P, 2))
    plain, written = tensor_state(pool), tensor_state(pool)
    indices = torch.tensor(INDICES)
    # PyTorch 2.9 does not trace properties of named tuples.
    call, options = getattr(linattn.torch, case.step), case.step_options

    def decode(operands, pool, indices):
        o, pool = call(**case.token(operands, 0), state=pool, state_indices=indices, **options)
        start = [x.index_select(0, indices) for x in leaves(pool)]
        given = {name: operands[name] for name in case.letters}
        return o, getattr(linattn.torch, name)(
            **given, **case.options, return_state=True, state_at=[1, 3],
            initial_state=State(*start) if isinstance(pool, State) else start[0],
        )  # fmt: skip

    with torch.no_grad():
        expected = decode(operands, plain, indices)
        compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
        result = compiled(operands, written, indices)
    assert same(arrays([*result, written]), arrays([*expected, plain]))


@every_recurrence
def test_errors(case):
    operands, pool = tensors(case.operands(LEAD, N)), tensor_state(case.state((P, 2)))
    before = arrays(tensor_state(case.state((P, 2))))

    def refused(error, words, state=pool, **more):
        with pytest.raises(error, match=f"^{case.name}: .*{words}"):
            case.forward(operands, linattn.torch, initial_state=state, **more)
        if "state_at" not in more:
            with pytest.raises(error, match=f"^{case.step}: .*{words}"):
                step(case, operands, 0, state, **more)

    refused(TypeError, "state_indices has dtype .*expected integers", state_indices=[1.0, 2, 3])
    refused(TypeError, "state_indices .*expected integers", state_indices="abc")
    refused(ValueError, r"state_indices has shape \(0,\)", state_indices=[])
    refused(TypeError, "state is a int; expected", 3, state_indices=INDICES)
    refused(ValueError, "state_indices has values from 0 to 7", state_indices=[0, 7, 1])
    refused(ValueError, "state_indices has 5 twice", state_indices=[5, 5, 1])
    refused(ValueError, r"state_indices has shape \(2,\)", state_indices=[5, 1])
    refused(ValueError, "expected a pool of states", None, state_indices=INDICES)
    first = tensor_state(case.state((P, 2, 1)))
    refused(ValueError, "has shape .*a pool, as state_indices", first, state_indices=INDICES)
    one_head = apply(lambda x: x[:, :1], pool)
    refused(ValueError, r"has shape .*expected \(rows, 2,", one_head, state_indices=INDICES)
    repeated = apply(lambda x: x[:1].expand(x.shape), pool)
    refused(ValueError, "repeats its memory", repeated, state_indices=INDICES)
    if isinstance(pool, State) and pool.z is not None:
        room = torch.zeros(pool.s.numel(), dtype=torch.float64)
        shared = apply(lambda x: room[: x.numel()].view(x.shape), pool)
        refused(ValueError, "shares memory with", shared, state_indices=INDICES)
        assert not room.any()
    narrow = tensor_state(case.state((P, 2), dtype="float32"))
    refused(TypeError, "has dtype (torch.)?float32; expected (torch.)?float64", narrow,
            state_indices=INDICES)  # fmt: skip
    refused(ValueError, "state_at has values", None, state_at=[N + 1])
    refused(ValueError, "return_state is False", None, state_at=[1], return_state=False)
    refused(ValueError, "cu_seqlens is given", None, state_at=[1], cu_seqlens=[0, N])
    assert same(arrays(pool), before)


@every_recurrence
@pytest.mark.parametrize("requires_grad", [False, True])
def test_dtypes_of_indices(case, requires_grad):
    operands, pool = case.operands(LEAD, N), case.state((P, 2))
    given = tensors(operands, requires_grad=requires_grad)
    expected = case.forward(operands, initial_state=copy_of(pool), state_indices=INDICES)
    token = case.one_step(operands, 0, copy_of(pool), state_indices=INDICES)
    for dtype in ("int32", "int16", "uint8"):
        for indices in (INDICES.astype(dtype), torch.tensor(INDICES.astype(dtype))):
            more = {"initial_state": tensor_state(pool), "state_indices": indices}
            assert same(arrays(case.forward(given, linattn.torch, **more)), flat(expected))
            found = step(case, given, 0, tensor_state(pool), state_indices=indices)
            assert same(arrays(found), flat(token))


def copy_of(state):
    return apply(np.copy, state)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_key_lengths_and_positions(requires_grad):
    case = next(x for x in FIRST if x.name == "gated")
    operands = tensors(case.operands(LEAD, N), requires_grad=requires_grad)
    for wrong in (N + 1, -1):
        lengths = torch.tensor([[2, wrong]] * LEAD[0])
        with pytest.raises(ValueError, match=r"^gated: key_lengths has values from .* 0 to 5"):
            case.forward(operands, linattn.torch, state_at=[3], key_lengths=lengths)


def test_indices_and_lengths_that_a_transform_hides():
    case = next(x for x in FIRST if x.name == "gated")
    operands, pool = tensors(case.operands(LEAD, N)), tensor_state(case.state((P, 2)))

    def loss(q, make):
        lengths = {"key_lengths": make([[4, 5]] * LEAD[0])}
        rows = {"initial_state": apply(torch.clone, pool), "state_indices": make(INDICES)}
        given = operands | {"q": q}
        o, _ = case.forward(given, linattn.torch, **rows, **lengths)
        y, _ = case.forward(given, linattn.torch, state_at=[1, 3], **lengths)
        return o.sum() + y.sum()

    grad = torch.func.grad(loss)
    hidden = grad(operands["q"], torch.tensor)  # made inside the transform
    assert same(arrays(hidden), arrays(grad(operands["q"], list)))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_errors_of_fused_steps(requires_grad):
    kind, lead = "fused_gated_delta_step", (3,)
    operands, _, options = make(kind, LAYERS[1], lead)
    _, pool, _ = make(kind, LAYERS[1], (P,), seed=1)
    x, *others = map(torch.tensor, operands)
    others[0].requires_grad_(requires_grad)
    more = {name: torch.tensor(y) for name, y in options.items()}
    conv, s = map(torch.tensor, pool)

    def call(x=x, conv=conv, s=s, **changes):
        given = {"state_indices": INDICES} | more | changes
        return linattn.torch.fused_gated_delta_step(x, *others, FusedState(conv, s), **given)

    o, after = call(x[0], conv.clone(), s.clone())  # x is broadcast
    expected = call(x[0].expand(x.shape), conv.clone(), s.clone())
    assert same(arrays([o, *after]), arrays([expected[0], *expected[1]]))
    for changes, error, words in (
        ({"x": None}, TypeError, "x is a NoneType; expected a tensor"),
        ({"A_log": None}, TypeError, "A_log is None; expected an array"),
        ({"conv": conv[1:]}, ValueError, r"state\.conv has 6 rows; expected 7, as state\.s has"),
        (
            {"s": s[0, 0, 0, 0]},
            ValueError,
            r"state\.s has shape \(\); expected \(\.\.\., n, d, m\)",
        ),
        ({"state_indices": "a"}, TypeError, "state_indices .*expected integers"),
        ({"state_indices": [5, 0, 7]}, ValueError, "state_indices has values from 0 to 7"),
    ):
        with pytest.raises(error, match=f"^{kind}: {words}"):
            call(**changes)
    assert same(arrays([conv, s]), [*pool])


@pytest.mark.parametrize("kind", ["fused_gated_delta_step", "fused_gated_step"])
def test_fused_steps(kind):
    """In place, and with a gradient, which a new pool passes on."""
    operands, _, options = make(kind, LAYERS[1], (3,))
    _, pool, _ = make(kind, LAYERS[1], (P,), seed=1)
    given = FusedState(*map(torch.tensor, pool))
    tokens = [torch.tensor(x) for x in operands]
    more = {name: torch.tensor(x) for name, x in options.items()}
    step_, indices = getattr(linattn.torch, kind), torch.tensor(INDICES)
    before = FusedState(*(x.clone() for x in given))
    o, after = step_(*tokens, given, **more, state_indices=indices)
    expected, _ = getattr(linattn, kind)(*operands, pool, **options, state_indices=INDICES)
    assert after.s is given.s and after.conv is given.conv
    assert same(arrays([o, *given]), [expected, *pool])
    tokens[0].requires_grad_()
    pools = FusedState(*(x.clone().requires_grad_() for x in before))
    o, after = step_(*tokens, pools, **more, state_indices=indices)
    assert same(arrays(pools), arrays(before))
    for x, y in zip(arrays([o, *after]), [expected, *pool], strict=True):
        assert np.abs(x - y).max() <= 1e-12 * np.abs(y).max()
    after.s.sum().backward()
    assert (pools.s.grad[OTHERS] == 1).all()
    assert tokens[0].grad.abs().sum() > 0
    with pytest.raises(ValueError, match=f"^{kind}: state_indices has 5 twice"):
        step_(*tokens, pools, **more, state_indices=[5, 5, 1])
