"""linattn.torch under opcheck, compile, export, vmap, autocast, threads and loaders."""

import pytest
import torch
import torch_cases as cases
from bounds import close
from slow import slow
from table import first_of
from torch_cases import (
    EACH,
    EACH_STEP,
    POSITIVE,
    ROWS,
    assert_same,
    call,
    leaves,
    make,
    reloaded,
)

import linattn
import linattn.torch as la

pytestmark = pytest.mark.usefixtures("forgotten")


def _arguments(monkeypatch, row, run):
    """What an operator is called with when `run` is."""
    seen = []
    operator = la._core.library.Operator

    def spy(self, *args):
        seen.append((self.op, args))
        return plain(self, *args)

    plain = operator.__call__
    monkeypatch.setattr(operator, "__call__", spy)
    run()
    return seen


#: What torch.library.opcheck looks at; tracing both ways takes long.
CHECKS = "test_schema", "test_autograd_registration", "test_faketensor"
TRACED = [pytest.param(x, ["test_aot_dispatch_dynamic"], marks=pytest.mark.slow)
          for x in first_of(ROWS)]  # fmt: skip


@pytest.mark.parametrize(("row", "checks"), [*((x, CHECKS) for x in ROWS), *TRACED], ids=str)
def test_opcheck(row, checks, monkeypatch):
    operands = leaves(make(row))

    def run():
        o = call(la, row, operands)
        o.sum().backward()
        if row.held:
            start = cases.pack(row, leaves(cases.state(row)))
            o, end = call(la, row, operands, initial_state=start, return_state=True)
            (o.sum() + cases.outputs(end)[0].sum()).backward()
        if row.held and row.row.compensated and row.options.get("feature_map") is not POSITIVE:
            _, end = call(la, row, make(row), return_state="exact")
            call(la, row, operands, initial_state=end)
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


#: The last axes of a view in the order of memory: of heads side by side, of columns.
ORDERS = {"heads": (-2, -3, -1), "columns": (-1, -2)}


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_opcheck_of_views(row, order, monkeypatch):
    """Graphs know the strides of results, and which gradients of states there are."""

    def view(x):
        last = ORDERS[order]
        if x.ndim < len(last):
            return x
        axes = [*range(x.ndim - len(last)), *(i + x.ndim for i in last)]
        return x.permute(axes).contiguous().permute([axes.index(i) for i in range(x.ndim)])

    operands = {name: view(x).requires_grad_() for name, x in make(row).items()}

    def run():
        o = call(la, row, operands)
        o.backward(view(torch.ones(o.shape, dtype=o.dtype)))
        if row.held:
            o, end = call(la, row, operands, return_state=True)
            (o.sum() + cases.outputs(end)[0].sum()).backward()

    for op, args in _arguments(monkeypatch, row, run):
        args = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        torch.library.opcheck(op, tuple(args), test_utils=["test_faketensor"])


@cases.EACH_KIND_OF_STEP
def test_compiled_steps(row):
    operands, state = make(row), cases.pack(row, cases.state(row))
    given = cases.token(row, operands, 0)

    def steps(state, given):
        new = call(la, row, given, step=True, state=state)
        return new, call(la, row, given, step=True, state=state, in_place=True)

    compiled = torch.compile(steps, fullgraph=True, backend="aot_eager")
    expected = call(la, row, given, step=True, state=cases.pack(row, cases.state(row)))
    for found in compiled(state, given):
        assert_same(found, expected)
    assert_same(state, expected[1])


@EACH
def test_export(row):
    class Model(torch.nn.Module):
        def forward(self, operands):
            return call(la, row, operands)

    operands = make(row)
    program = torch.export.export(Model(), (operands,))
    assert any("linattn" in str(node.target) for node in program.graph.nodes)
    assert_same(program.module()(operands), call(la, row, operands))


@pytest.mark.parametrize("row", first_of(cases.RECURRENT), ids=str)
def test_exported_states(row):
    """In programs that are saved and loaded."""

    class Model(torch.nn.Module):
        def forward(self, operands, state):
            return call(la, row, operands, initial_state=state, return_state=True)

    args = make(row), cases.pack(row, cases.state(row))
    program = reloaded(torch.export.export(Model(), args))
    assert_same(program.module()(*args), Model()(*args))


def test_exported_fused_states():
    def step(x, state):
        return la.fused_gated_step(x, x[:, :1], state, A_log=x[0, :1], dt_bias=x[0, :1])

    model = torch.nn.Module()
    model.forward = step
    args = torch.randn(2, 7), la.FusedState(None, torch.ones(2, 1, 2, 3))
    program = reloaded(torch.export.export(model, args))
    found, expected = program.module()(*args), step(*args)
    assert type(found[1]) is la.FusedState
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("row", [*ROWS[:1], *slow(*ROWS[1:])], ids=str)
def test_vmap_and_func_grad(row):
    """Over the first axis of all, and over the last of each operand alone; gradients by sample."""
    batches = [make(row, seed=i) for i in range(3)]
    stacked = {name: torch.stack([x[name] for x in batches]) for name in row.letters}
    samples = [(stacked, dict.fromkeys(row.letters, 0), batches)]
    for name in row.letters:
        mixed = batches[0] | {name: stacked[name].movedim(0, -1)}
        dims = {x: -1 if x == name else None for x in row.letters}
        samples.append((mixed, dims, [batches[0] | {name: x} for x in stacked[name]]))

    def run(operands):
        return call(la, row, operands)

    grad = torch.func.grad(lambda x: run(x).square().sum())
    for given, dims, each in samples:
        found = torch.vmap(run, in_dims=(dims,))(given)
        close(found, torch.stack([*map(run, each)]), atol=1e-13, rtol=1e-12)
        found, expected = torch.vmap(grad, in_dims=(dims,))(given), [*map(grad, each)]
        for x in row.letters:
            y = torch.stack([z[x] for z in expected])
            close(found[x], y, atol=1e-12 * (1 + float(y.abs().max())))


@pytest.mark.slow
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


@EACH_STEP
def test_autocast_of_steps(row):
    """The same whether or not they write to their state."""
    token = cases.token(row, make(row, torch.float32), 0)
    states = [cases.pack(row, cases.state(row, torch.float32)) for _ in range(2)]
    found = []
    for state, in_place in zip(states, (False, True), strict=True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            o, after = call(la, row, token, step=True, state=state, in_place=in_place)
        found.append([o, *cases.outputs(after)])
    assert found[0][0].dtype is torch.bfloat16
    for x, y in zip(*found, strict=True):
        assert x.dtype is y.dtype and torch.equal(x, y)


@pytest.mark.parametrize("direct", [True, False])
def test_as_many_threads_as_torch(direct, monkeypatch):
    """While a call runs; linattn's own number is another matter."""
    row = ROWS[0]
    seen = []
    operator = la._core.operator.OPERATORS["causal"]
    forward = operator.forward_of

    def spy(*args, **options):
        seen.append(linattn.get_num_threads())
        return forward(*args, **options)

    monkeypatch.setattr(operator, "forward_of", spy)
    before, own = torch.get_num_threads(), linattn.get_num_threads()
    tensors = {x: y.requires_grad_(not direct) for x, y in make(row).items()}
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            call(la, row, tensors)
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
