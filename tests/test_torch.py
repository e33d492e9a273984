"""linattn.torch: the NumPy package's results on tensors, and PyTorch's own checks of operators."""

import contextlib

import numpy as np
import pytest
from bounds import close

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_cases as cases  # noqa: E402
from torch_cases import RECURRENT, ROWS, STEPS, call, make  # noqa: E402

import linattn  # noqa: E402
import linattn.torch as la  # noqa: E402


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    torch._dynamo.reset()  # the same lambda for every row would be too many versions of one


EACH = pytest.mark.parametrize("row", ROWS, ids=str)
EACH_RECURRENT = pytest.mark.parametrize("row", RECURRENT, ids=str)
EACH_STEP = pytest.mark.parametrize("row", STEPS, ids=str)


def leaves(tensors):
    return {name: x.clone().requires_grad_() for name, x in tensors.items()}


def assert_same(actual, expected):
    """Bit for bit, tensors with arrays or tensors."""
    for x, y in zip(cases.outputs(actual), cases.outputs(expected), strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), np.asarray(y))


# --- results ------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_results_are_those_of_the_arrays(row, dtype):
    operands = make(row, dtype)
    o = call(la, row, operands)
    assert o.dtype is dtype and o.is_contiguous()
    assert_same(o, call(linattn, row, cases.arrays(operands)))


@EACH
def test_bfloat16(row):
    """As float32, rounded once; states and gates of 32 bits."""
    operands = make(row, torch.bfloat16)
    wide = {name: x.float() for name, x in operands.items()}
    o = call(la, row, operands)
    assert o.dtype is torch.bfloat16
    expected = call(la, row, wide)
    close(o.float(), expected, atol=2**-8 * float(expected.abs().max()), rtol=2**-8)
    given = leaves(operands)
    call(la, row, given).float().sum().backward()
    for name, x in given.items():
        assert x.grad.dtype is torch.bfloat16 and x.grad.isfinite().all(), name


@EACH_RECURRENT
def test_states(row):
    """Given and returned, as those of arrays, and a sequence cut in two goes on."""
    operands, start = make(row), cases.state(row)
    o, end = call(la, row, operands, initial_state=cases.pack(row, start), return_state=True)
    expected = call(
        linattn, row, cases.arrays(operands),
        initial_state=cases.pack(row, cases.arrays(start)), return_state=True,
    )  # fmt: skip
    assert_same((o, end), expected)


@EACH_STEP
def test_steps(row):
    operands, state = make(row), cases.pack(row, cases.state(row))
    array_state = cases.pack(row, cases.arrays(cases.state(row)))
    for i in range(3):
        given = cases.token(row, operands, i)
        o, after = call(la, row, given, step=True, state=state)
        expected, array_state = call(
            linattn, row, cases.arrays(given), step=True, state=array_state
        )
        assert_same((o, after), (expected, array_state))
        again, same = call(la, row, given, step=True, state=state, in_place=True)
        assert same is state
        assert_same((again, same), (o, after))


@EACH_STEP
def test_steps_in_place_are_seen_by_backward(row):
    """As those of PyTorch's own operators: what a gradient needs and is no more is an error."""
    operands, start = leaves(make(row)), cases.state(row)
    given = cases.token(row, make(row), 0)
    o = call(la, row, operands, initial_state=cases.pack(row, start))
    with torch.no_grad():
        call(la, row, given, step=True, state=cases.pack(row, start), in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
    versions = [x._version for x in start.values()]

    def again():
        return call(la, row, given, step=True, state=cases.pack(row, start), in_place=True)

    def dispatched():
        with torch.autograd.profiler.profile():
            return again()

    for run in (again, dispatched, torch.compile(again, fullgraph=True, backend="aot_eager")):
        run()
        after = [x._version for x in start.values()]
        assert all(x < y for x, y in zip(versions, after, strict=True)), run
        versions = after


@EACH_STEP
def test_steps_in_place_in_inference_mode(row):
    """Of tensors made there, which count no versions, and of others, which do."""
    given, other = cases.token(row, make(row), 0), cases.state(row)
    expected = call(la, row, given, step=True, state=cases.pack(row, other))
    with torch.inference_mode():
        for state in ({name: x.clone() for name, x in other.items()}, other):
            state = cases.pack(row, state)
            assert_same(call(la, row, given, step=True, state=state, in_place=True), expected)
    assert all(x._version == 1 for x in other.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_of_16_bits_take_a_number(dtype):
    """Which does not widen the result."""
    q, state = torch.ones(3, dtype=dtype), la.State(torch.zeros(3, 3))
    assert la.delta_step(q, q, q, 0.1, state)[0].dtype is dtype
    assert la.gated_delta_step(q, q, q, -0.1, 1, state)[0].dtype is dtype
    with pytest.raises(ValueError, match="delta_step: beta is too large for a float"):
        la.delta_step(q, q, q, 10**400, state)
    compiled = torch.compile(
        lambda q, s: la.gated_delta_step(q, q, q, -0.1, 1, s)[0],
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    assert torch.equal(compiled(q, state), la.gated_delta_step(q, q, q, -0.1, 1, state)[0])


@EACH
def test_layouts_and_expanded_operands(row):
    """Views of any strides, and of none."""
    operands = make(row)
    turned = {
        name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in operands.items()
    }
    assert_same(call(la, row, turned), call(la, row, operands))
    given, plain = leaves(turned), leaves(operands)
    for tensors, expand in ((given, True), (plain, False)):
        o = call(la, row, tensors)
        grad = torch.ones(()).expand(o.shape) if expand else torch.ones(o.shape)
        o.backward(grad.to(o.dtype))
    for name, x in given.items():
        assert_same(x.grad, plain[name].grad)


def test_the_layout_of_values():
    """(batch, tokens, heads, m) turned to (batch, heads, tokens, m) is turned back for nothing."""
    for row in RECURRENT:
        if row.name == "causal_conv1d":
            continue
        operands = make(row)
        operands["v"] = operands["v"].transpose(1, 2).contiguous().transpose(1, 2)
        assert call(la, row, operands).transpose(1, 2).is_contiguous()


# --- gradients -----------------------------------------------------------------


@EACH
def test_gradients(row):
    names, tensors = zip(*leaves(make(row)).items(), strict=True)

    def function(*values):
        return call(la, row, dict(zip(names, values, strict=True)))

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


@EACH_RECURRENT
def test_gradients_of_states_and_through_them(row):
    operands, start = leaves(make(row)), leaves(cases.state(row))
    names, fields = tuple(operands), tuple(start)

    def function(*values):
        given = dict(zip(names, values, strict=False))
        state = dict(zip(fields, values[len(names) :], strict=True))
        return tuple(
            cases.outputs(
                call(la, row, given, initial_state=cases.pack(row, state), return_state=True)
            )
        )

    tensors = (*operands.values(), *start.values())
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


@pytest.mark.parametrize("row", [x for x in RECURRENT if "key_lengths" not in x.options], ids=str)
def test_truncated_gradients_are_those_of_the_whole(row):
    """Cut in two, gradients flow back through the state; lengths count from the first token."""
    whole, parts = leaves(make(row)), leaves(make(row))
    call(la, row, whole).square().sum().backward()
    rows = {"beta": -1, "g": -1}
    fixed = ("bonus", "weight", "bias")

    def part(begin, end):
        return {
            name: x if name in fixed else x.narrow(rows.get(name, -2), begin, end - begin)
            for name, x in parts.items()
        }

    first, state = call(la, row, part(0, 4), return_state=True)
    second = call(la, row, part(4, cases.N), initial_state=state)
    (first.square().sum() + second.square().sum()).backward()
    for name, x in parts.items():
        close(x.grad, whole[name].grad, atol=1e-12 * float(whole[name].grad.abs().max()))


@pytest.mark.parametrize("row", [x for x in STEPS if x.state != "sz-scale"], ids=str)
def test_gradients_of_steps(row):
    """Those of tokens one by one are those of the sequence; before them a state has no scale."""
    whole, tokens = leaves(make(row)), leaves(make(row))
    start = cases.pack(row, cases.state(row))
    o, end = call(la, row, whole, initial_state=start, return_state=True)
    (o.square().sum() + end[0].sum()).backward()
    state, total = start, 0
    for i in range(cases.N):
        o, state = call(la, row, cases.token(row, tokens, i), step=True, state=state)
        total = total + o.square().sum()
    (total + state[0].sum()).backward()
    for name, x in tokens.items():
        close(x.grad, whole[name].grad, atol=1e-12 * float(whole[name].grad.abs().max()))


@EACH
def test_some_operands_require_grad(row):
    full = leaves(make(row))
    call(la, row, full).sum().backward()
    for name in row.operands:
        operands = make(row)
        operands[name].requires_grad_()
        call(la, row, operands).sum().backward()
        assert_same(operands[name].grad, full[name].grad)


@EACH
def test_second_derivatives_are_refused(row):
    operands = leaves(make(row))
    x = next(iter(operands.values()))
    (grad,) = torch.autograd.grad(call(la, row, operands).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients"):
        grad.sum().backward()


@EACH
def test_inference_mode(row):
    operands = make(row)
    with torch.inference_mode():
        o = call(la, row, operands)
    assert_same(o, call(la, row, operands))


# --- PyTorch's own machinery -------------------------------------------------------


def _arguments(monkeypatch, row, run):
    """What an operator is called with when `run` is."""
    seen = []
    operator = la._library.Operator

    def spy(self, *args):
        seen.append((self.op, args))
        return plain(self, *args)

    plain = operator.__call__
    monkeypatch.setattr(operator, "__call__", spy)
    run()
    return seen


#: What torch.library.opcheck looks at; tracing, which takes long, test_compile does as well.
CHECKS = "test_schema", "test_autograd_registration", "test_faketensor"


@pytest.mark.parametrize(
    "checks", [CHECKS, pytest.param(["test_aot_dispatch_dynamic"], marks=pytest.mark.slow)]
)
@EACH
def test_opcheck(row, checks, monkeypatch):
    operands = leaves(make(row))

    def run():
        o = call(la, row, operands)
        o.sum().backward()
        if row.state:
            start = cases.pack(row, leaves(cases.state(row)))
            o, end = call(la, row, operands, initial_state=start, return_state=True)
            (o.sum() + cases.outputs(end)[0].sum()).backward()
        if row.step:
            start = cases.pack(row, cases.state(row))
            given = cases.token(row, operands, 0)
            call(la, row, given, step=True, state=start)
            with torch.no_grad():
                call(la, row, given, step=True, state=start, in_place=True)

    for op, args in _arguments(monkeypatch, row, run):
        if "_backward" in op._schema.name:  # no gradient of its own to trace
            args = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        if op._schema.is_mutable:
            args = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        torch.library.opcheck(op, tuple(args), test_utils=checks)


@EACH
def test_compile(row):
    """In one graph, forwards and backwards, and again with another length."""
    compiled = torch.compile(
        lambda **operands: call(la, row, operands).square().sum(), fullgraph=True,
        backend="aot_eager", dynamic=True,
    )  # fmt: skip
    given, expected = leaves(make(row)), leaves(make(row))
    compiled(**given).backward()
    call(la, row, expected).square().sum().backward()
    for name, x in given.items():
        close(x.grad, expected[name].grad, atol=1e-13 * float(expected[name].grad.abs().max()))


@EACH_STEP
def test_compiled_steps(row):
    operands, state = make(row), cases.pack(row, cases.state(row))
    given = cases.token(row, operands, 0)
    for in_place in (False, True):
        compiled = torch.compile(
            lambda state, given, in_place=in_place: call(
                la, row, given, step=True, state=state, in_place=in_place
            ),
            fullgraph=True, backend="aot_eager",
        )  # fmt: skip
        expected = call(la, row, given, step=True, state=cases.pack(row, cases.state(row)))
        assert_same(compiled(state, given), expected)


@EACH
def test_export(row):
    class Model(torch.nn.Module):
        def forward(self, operands):
            return call(la, row, operands)

    operands = make(row)
    program = torch.export.export(Model(), (operands,))
    assert any("linattn" in str(node.target) for node in program.graph.nodes)
    assert_same(program.module()(operands), call(la, row, operands))


@EACH
def test_vmap_and_func_grad(row):
    """Over the first axis of all, and of each operand alone; gradients by sample."""
    batches = [make(row, seed=i) for i in range(3)]
    stacked = {name: torch.stack([x[name] for x in batches]) for name in row.operands}

    def loss(operands):
        return call(la, row, operands).square().sum()

    def close_to(actual, expected):
        for name, x in actual.items():
            close(x, expected[name], atol=1e-12 * (1 + float(expected[name].abs().max())))

    together = torch.vmap(lambda x: call(la, row, x))(stacked)
    close(together, torch.stack([call(la, row, x) for x in batches]), atol=1e-13, rtol=1e-12)
    expected = [torch.func.grad(loss)(x) for x in batches]
    close_to(
        torch.vmap(torch.func.grad(loss))(stacked),
        {name: torch.stack([x[name] for x in expected]) for name in row.operands},
    )
    close_to(
        torch.func.grad(lambda x: torch.vmap(loss)(x).sum())(stacked),
        {name: torch.stack([x[name] for x in expected]) for name in row.operands},
    )
    for name in row.operands:
        mixed = batches[0] | {name: stacked[name].movedim(0, -1)}
        dims = {x: -1 if x == name else None for x in row.operands}
        each = [batches[0] | {name: x} for x in stacked[name]]
        close(
            torch.vmap(lambda x: call(la, row, x), in_dims=(dims,))(mixed),
            torch.stack([call(la, row, x) for x in each]), atol=1e-13, rtol=1e-12,
        )  # fmt: skip
        found = torch.vmap(torch.func.grad(loss), in_dims=(dims,))(mixed)
        expected = [torch.func.grad(loss)(x) for x in each]
        close_to(found, {x: torch.stack([y[x] for y in expected]) for x in row.operands})


@EACH
def test_autocast(row):
    """bfloat16 where products are, float32 for gates."""
    operands = leaves(make(row, torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        o = call(la, row, operands)
    assert o.dtype is (torch.float32 if row.name == "log_decay" else torch.bfloat16)
    o.float().sum().backward()
    for name, x in operands.items():
        assert x.grad.dtype is torch.float32 and x.grad.isfinite().all(), name
    compiled = torch.compile(lambda x: call(la, row, x), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        again = compiled(make(row, torch.float32))
    assert_same(again.float(), o.detach().float())


# --- threads ------------------------------------------------------------------------


def test_as_many_threads_as_torch(monkeypatch):
    """While a call runs; linattn's own number is another matter."""
    row = ROWS[0]
    seen = []
    operator = la._operator.OPERATORS["causal"]
    forward = operator.forward_of

    def spy(*args, **options):
        seen.append(linattn.get_num_threads())
        return forward(*args, **options)

    monkeypatch.setattr(operator, "forward_of", spy)
    before, own = torch.get_num_threads(), linattn.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            call(la, row, make(row))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 3]
    assert linattn.get_num_threads() == own


class _Attended(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        q = torch.full((2, 5000, 16), 0.1)
        return la.causal(q, q, q).sum(), torch.get_num_threads()


def test_workers_of_a_loader():
    """After a fork, with the one thread that a worker has."""
    la.causal(*(torch.ones(2, 5000, 16) for _ in range(3)))  # the pool's threads are there
    loader = torch.utils.data.DataLoader(_Attended(), num_workers=2, batch_size=2)
    sums, threads = zip(*loader, strict=True)
    assert torch.cat(sums).isfinite().all() and {int(x) for x in torch.cat(threads)} == {1}


# --- what is refused ------------------------------------------------------------------


@EACH
def test_wrong_tensors(row):
    operands = make(row)
    for name in row.operands:
        wrong = {
            "complex": (operands[name].to(torch.complex64), "real numbers"),
            "sparse": (operands[name].to_sparse(), "to_dense"),
            "array": (operands[name].numpy(), "expected a tensor"),
        }
        for x, message in wrong.values():
            with pytest.raises(TypeError, match=message) as error:
                call(la, row, operands | {name: x})
            own = {"g_d": "g", "beta_m": "beta", "c": "x"}.get(name, name)
            assert f"{row.name}: {own} " in str(error.value)


@EACH
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_no_plain_numbers(row):
    """float8, which nothing computes in, and nested tensors of both layouts."""
    operands = make(row)
    for name, x in operands.items():
        own = {"g_d": "g", "beta_m": "beta", "c": "x"}.get(name, name)
        with pytest.raises(TypeError, match=rf"{row.name}: {own} has dtype torch\.float8_e4m3fn"):
            call(la, row, operands | {name: x.to(torch.float8_e4m3fn)})
        for layout in (torch.strided, torch.jagged):
            nested = torch.nested.nested_tensor([x, x], layout=layout)
            with pytest.raises(TypeError, match=rf"{row.name}: {own} is a nested tensor"):
                call(la, row, operands | {name: nested})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_in_states_and_maps():
    x = torch.ones(5, 4)
    nested = torch.nested.nested_tensor([x, x[:2]])
    for call_of in (
        lambda: la.initial_state(nested, nested, nested),
        lambda: la.causal(nested, x, x, return_state=True),
        lambda: la.causal(nested, x, x, feature_map=torch.square, key_lengths=3),
        lambda: la.step(x[0], x[0], x[0], la.State(nested, x[0])),
        lambda: la.feature_maps.get("dpfp")(nested),
    ):
        with pytest.raises(TypeError, match="is a nested tensor; expected a plain one"):
            call_of()


def test_quantised_and_meta_tensors():
    q = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"causal: q is quantised.*dequantize"):
        la.causal(q, torch.ones(2, 3), torch.ones(2, 3))
    x = torch.empty(2, 7, 3, device="meta")
    assert la.causal(x, x, x).shape == (2, 7, 3)


def test_wrong_shapes_and_options():
    x = torch.ones(5, 3)
    with pytest.raises(ValueError, match=r"causal: k has shape \(5, 4\)"):
        la.causal(x, torch.ones(5, 4), x)
    with pytest.raises(TypeError, match="causal: scale is"):
        la.causal(x, x, x, scale=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match="feature_map is 'nosuch'"):
        la.causal(x, x, x, feature_map="nosuch")
    with pytest.raises(TypeError, match="feature_map is 3"):
        la.causal(x, x, x, feature_map=3)
    with pytest.raises(TypeError, match=r"key_lengths has dtype torch\.float32"):
        la.causal(x, x, x, key_lengths=torch.tensor(2.0))
    with pytest.raises(TypeError, match="initial_state is a Tensor"):
        la.causal(x, x, x, initial_state=x)
    s = torch.zeros(3, 3)
    for wrong, what in (((s,), "tuple of 1"), ((), "tuple of 0"), ([s, s[0]], "list")):
        with pytest.raises(TypeError, match=rf"initial_state is a {what}; expected a linattn\.St"):
            la.causal(x, x, x, initial_state=wrong)
    with pytest.raises(TypeError, match=r"initial_state\.s is a NoneType; expected a tensor"):
        la.causal(x, x, x, initial_state=la.State(None))
    with pytest.raises(ValueError, match="z is given"):
        la.delta(x, x, x, torch.ones(5), initial_state=linattn.State(torch.ones(3, 3), x[0]))
    state = linattn.State(torch.zeros(3, 3), torch.zeros(3))
    with pytest.raises(RuntimeError, match="in_place is True and an operand requires grad"):
        la.step(x[0].clone().requires_grad_(), x[0], x[0], state, in_place=True)


def test_arrays_refuse_tensors_with_gradients():
    """The NumPy functions would lose the graph."""
    x = torch.ones(5, 3)
    assert linattn.causal(x, x, x).shape == (5, 3)
    y = x.clone().requires_grad_()
    with pytest.raises(TypeError, match=r"causal: q requires grad.*linattn\.torch\.causal"):
        linattn.causal(y, x, x)
    with pytest.raises(TypeError, match=r"log_decay: A_log requires grad"):
        linattn.log_decay(np.ones(5), y[:, 0], 0.0)


@EACH
def test_negative_bits(row):
    """As of the imaginary part of a conjugate: operands have them, what is written has none."""

    def negative(tensors):
        return {name: torch.complex(x, -x).conj().imag for name, x in tensors.items()}

    def gradients(tensors):
        given = leaves(tensors)
        o = call(la, row, {name: torch._neg_view(-x) for name, x in given.items()})
        return torch.autograd.grad(torch._neg_view(o).square().sum(), list(given.values()))

    operands = make(row)
    assert_same(call(la, row, negative(operands)), call(la, row, operands))
    assert_same(tuple(gradients(operands)), tuple(gradients(negative(operands))))
    if not row.step:
        return
    given, state = cases.token(row, operands, 0), cases.state(row)
    expected = call(la, row, given, step=True, state=cases.pack(row, state))
    for in_place in (False, True):
        found = call(la, row, negative(given), step=True, state=cases.pack(row, state),
                     in_place=in_place)  # fmt: skip
        assert_same(found, expected)
    state = cases.pack(row, negative(state))
    for here in (contextlib.nullcontext(), torch.autograd.profiler.profile()):
        with here, pytest.raises(TypeError, match="step: s has the negative bit"):
            call(la, row, given, step=True, state=state, in_place=True)


def test_the_default_device_is_not_looked_at():
    """What a call makes for itself is where its operands are."""
    x, w, state = torch.ones(1, 6, 2, 4), torch.ones(4, 3), la.State(torch.ones(4, 4))
    row, token = x[0, :, 0], x[0, 0, 0]
    cuts, length = torch.tensor([0, 2, 6]), torch.tensor([1])
    layer = la.nn.LinearAttention(4, 2)

    @torch.no_grad()
    def calls():
        phi = {"feature_map": torch.square}
        yield la.causal(x, x, x, **phi, key_lengths=length)
        yield la.causal(x, x, x, **phi, key_lengths=[1])
        yield la.causal(row, row, row, cu_seqlens=[0, 2, 6])
        yield la.delta_step(token, token, token, 0.5, state)[0]
        yield la.log_decay(x, 1.0, 0.5)
        yield la.causal_conv1d(row, w, cu_seqlens=[0, 2, 6])
        yield la.fla.fused_recurrent_gla(x, x, x)[0]
        yield la.fla.fused_recurrent_simple_gla(x, x, x)[0]
        yield la.fla.fused_recurrent_gated_delta_rule(x, x, x, gk=-x)[0]
        yield la.fla.fused_recurrent_gated_delta_rule(x, x, x)[0]
        yield la.fla.chunk_retention(x, x, x)[0]
        yield la.fla.chunk_lightning_attn(x, x, x, 1, 4)[0]
        yield from la.fla.causal_conv1d(x[:, :, 0], w, output_final_state=True)
        yield from la.fla.causal_conv1d(x[:, :, 0], w, cu_seqlens=cuts, output_final_state=True)
        yield layer(x[:, :, 0], key_lengths=[3])

    expected = tuple(calls())
    with torch.device("meta"):
        found = tuple(calls())
    assert_same(found, expected)


# --- maps -------------------------------------------------------------------------------


MAPS = [
    *linattn.feature_maps.NAMES,
    linattn.feature_maps.DPFP(nu=2, normalize=False),
    linattn.feature_maps.get("relu").normalized(),
    linattn.feature_maps.RandomFourierFeatures.sample(4, 6, rng=1),
    linattn.feature_maps.PositiveRandomFeatures.sample(4, 6, rng=1, hyperbolic=True),
    linattn.feature_maps.PositiveRandomFeatures.sample(4, 6, rng=1).normalized(1e-3),
    linattn.feature_maps.GeneralizedRandomFeatures.sample(4, 6, rng=1),
    linattn.feature_maps.FeedforwardKernel.oglu(3, 4, rng=1),
    linattn.feature_maps.FeedforwardKernel.aoglu(3, 4, depth=2, rng=1),
]


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
def test_maps(feature_map):
    """phi(x) and its gradient, alone and as the map of an operator."""
    operands = make(ROWS[0])
    phi = la.feature_maps.get(feature_map)
    x = operands["q"].requires_grad_()
    expected = linattn.feature_maps.get(feature_map)(x.detach().numpy())
    close(phi(x).detach(), expected, atol=1e-15, rtol=1e-14)
    assert torch.autograd.gradcheck(phi, (x,), fast_mode=True)
    o = la.delta(**operands, beta=torch.full(x.shape[:-1], 0.5).double(), feature_map=feature_map,
                 scale=0.1)  # fmt: skip
    expected = linattn.delta(
        *cases.arrays(operands).values(), np.full(x.shape[:-1], 0.5), feature_map=feature_map,
        scale=0.1,
    )  # fmt: skip
    close(o.detach(), expected, atol=1e-12 * abs(expected).max())
    o.sum().backward()
    assert x.grad.isfinite().all()


def test_learned_maps_are_trained():
    """Weights and their penalty have gradients; a module may be a map."""
    numpy_map = linattn.feature_maps.FeedforwardKernel.glu(3, 4, rng=1)
    weights = [[torch.tensor(w, requires_grad=True) for w in unit] for unit in numpy_map.weights]
    phi = la.feature_maps.FeedforwardKernel(weights)
    operands = make(ROWS[0])
    la.causal(**operands, feature_map=phi).sum().backward()
    assert all(w.grad.abs().sum() > 0 for unit in weights for w in unit)
    penalty = phi.orthogonality(0.5)
    expected, grads = numpy_map.orthogonality(0.5)
    close(penalty.detach(), expected, atol=1e-15)
    weights[0][0].grad = None
    penalty.backward()
    close(weights[0][0].grad, grads[0][0], atol=1e-15)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus()).double()
    la.causal(**operands, feature_map=layer).sum().backward()
    assert layer[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
def test_maps_of_one_token(feature_map):
    """As in a sequence: weights by head find their heads, and not a batch as large."""
    whole = [x[:1].repeat(3, 1, 1, 1) for x in make(ROWS[0]).values()]  # as many as heads
    normalize = isinstance(feature_map, linattn.feature_maps.PositiveRandomFeatures)
    options = {"feature_map": feature_map, "normalize": normalize}
    o, state = la.causal(*whole, **options, return_state=True)
    _, middle = la.causal(*(x[..., :-1, :] for x in whole), **options, return_state=True)
    last, after = la.step(*(x[..., -1, :] for x in whole), middle, **options)
    for x, y in ((last, o[..., -1, :]), (after.s, state.s)):
        close(x, y, atol=1e-13 * float(y.abs().max()), rtol=0)


def test_padding_is_not_mapped():
    """NaN behind key_lengths reaches neither results nor gradients, whatever the map."""
    operands = leaves(make(ROWS[0]))
    with torch.no_grad():
        operands["k"][..., 5:, :] = torch.nan
        operands["v"][..., 5:, :] = torch.nan
    for feature_map in MAPS:
        o = la.causal(**operands, feature_map=feature_map, normalize=False,
                      key_lengths=torch.tensor(5))  # fmt: skip
        grads = torch.autograd.grad(o.sum(), list(operands.values()))
        assert o.isfinite().all() and all(x.isfinite().all() for x in grads), feature_map
