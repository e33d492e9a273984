"""patch_xlstm: blocks of the xlstm package compute what they do by themselves."""

import pytest
import torch
import xlstm
from bounds import close
from xlstm.blocks.mlstm.cell import mLSTMCell, mLSTMCellConfig
from xlstm.blocks.slstm.cell import sLSTMCell, sLSTMCell_vanilla, sLSTMCellConfig

from linattn.torch import patch_xlstm, patched

HEADS, D, B, N = 2, 5, 3, 11
NAMES = [
    "xlstm.blocks.mlstm.cell.parallel_stabilized_simple",
    "xlstm.blocks.mlstm.cell.recurrent_step_stabilized_simple",
    "xlstm.blocks.slstm.cell.sLSTMCell_vanilla.forward",
]


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def slstm_cell(**options):
    config = sLSTMCellConfig(
        hidden_size=HEADS * D, num_heads=HEADS, backend="vanilla", dtype="float32", **options
    )  # fmt: skip
    cell = sLSTMCell(config)
    for x in cell.parameters():
        torch.nn.init.normal_(x, std=0.4)
    return cell


def mlstm_cell():
    cell = mLSTMCell(mLSTMCellConfig(context_length=64, embedding_dim=HEADS * D, num_heads=HEADS))
    for x in cell.parameters():
        torch.nn.init.normal_(x, std=0.4)
    return cell


def both(f, *inputs, parameters=(), atol=1e-10, recorded=True):
    """The results of f and their gradients, of the package itself and patched, are equal."""

    def results():
        given = [x.clone().requires_grad_(recorded) for x in inputs]
        made = f(*given)
        if not recorded:
            return made
        total = sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in made)
        grads = torch.autograd.grad(total, [*given, *parameters], allow_unused=True)
        return [*made, *(x for x in grads if x is not None)]

    expected = results()
    with patch_xlstm():
        found = results()
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        assert x.dtype is y.dtype
        close(x.detach().numpy(), y.detach().numpy(), atol=atol)


@pytest.mark.parametrize("output", ["BNSH", "BSH", "SBH", "SBNH"])
@pytest.mark.parametrize("order", ["BSGNH", "SBGNH"])
def test_slstm_cells(output, order):
    cell = slstm_cell(output_shape=output, input_shape=order)
    lead = (B, N) if order == "BSGNH" else (N, B)
    both(cell, torch.randn(*lead, 4 * HEADS * D), parameters=[*cell.parameters()])


def test_states_of_slstm_cells():
    """Of one call to the next; the gradients too."""
    cell = slstm_cell()
    state = torch.randn(4, B, HEADS * D)
    state[2] = state[2].abs() + 0.1

    def twice(x, state):
        first, after = cell(x[:, :4], state)
        second, after = cell(x[:, 4:5], after)
        return first, second, after

    both(twice, torch.randn(B, 5, 4 * HEADS * D), state, parameters=[*cell.parameters()])


def test_a_state_of_another_shape():
    cell, x = slstm_cell(), torch.randn(B, N, 4 * HEADS * D)
    with (
        patch_xlstm(),
        pytest.raises(ValueError, match=r"sLSTMCell_vanilla: state has shape \(4, 7, 10\); .*3, 10")
    ):  # fmt: skip
        cell.forward(x, torch.zeros(4, 7, HEADS * D))


def test_other_cells_stay_the_packages():
    cell = slstm_cell(function="lstm")
    both(cell, torch.randn(B, N, 4 * HEADS * D))


@pytest.mark.parametrize("n", [1, N, 64])
def test_mlstm_cells(n):
    cell = mlstm_cell()
    q, k, v = torch.randn(3, B, n, HEADS * D)
    # eps, 1e-6, is relative to a maximum that begins with the first gate there, and here with 0.
    both(lambda *x: [cell(*x)], q, k, v, parameters=[*cell.parameters()], atol=1e-5)


def test_steps_of_mlstm_cells():
    cell = mlstm_cell()
    q, k, v = torch.randn(3, B, 4, HEADS * D)

    def steps(q, k, v):
        state, outputs = None, []
        for t in range(4):
            rows = slice(t, t + 1)
            o, state = cell.step(q[:, rows], k[:, rows], v[:, rows], mlstm_state=state)
            outputs.append(o)
        return *outputs, *state

    with torch.no_grad():  # the package's own step writes to its operands
        both(steps, q, k, v, recorded=False)


def test_a_model():
    """Of both blocks, over all tokens and token by token."""
    block = xlstm.xLSTMBlockStackConfig(
        mlstm_block=xlstm.mLSTMBlockConfig(
            mlstm=xlstm.mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)
        ),
        slstm_block=xlstm.sLSTMBlockConfig(
            slstm=xlstm.sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4),
            feedforward=xlstm.FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
        ),
        context_length=16, num_blocks=2, embedding_dim=16, slstm_at=[1],
    )  # fmt: skip
    model = xlstm.xLSTMBlockStack(block)
    x = torch.randn(B, 16, 16)

    def steps(x):
        state, outputs = None, []
        for t in range(4):
            o, state = model.step(x[:, t : t + 1], state=state)
            outputs.append(o)
        return outputs

    both(lambda x: [model(x)], x, parameters=[*model.parameters()], atol=1e-5)
    with torch.no_grad():
        both(steps, x, recorded=False, atol=1e-5)


def test_what_is_patched():
    cell = mlstm_cell()
    original = cell.backend_fn
    assert not {*NAMES} & {*patched()}
    with patch_xlstm() as outer, patch_xlstm():
        assert {*NAMES} <= {*patched()}
        assert cell.backend_fn is not original
        assert repr(outer) == "<3 functions of xlstm run on linattn>"
        assert mlstm_cell().backend_fn is cell.backend_fn
    assert not {*NAMES} & {*patched()}
    assert cell.backend_fn is original
    with patch_xlstm():
        built = mlstm_cell()
    assert built.backend_fn is original
    cell.backend_fn = len
    with patch_xlstm():
        assert cell.backend_fn is len


def test_what_another_program_puts_there_stays(monkeypatch):
    """A second patch leaves it there, and so does undo."""
    # The inherited method, so that the end of the test removes _other.
    monkeypatch.setattr(sLSTMCell_vanilla, "forward", sLSTMCell_vanilla.forward)
    patch = patch_xlstm()
    sLSTMCell_vanilla.forward = _other
    with patch_xlstm():
        assert sLSTMCell_vanilla.forward is _other
    patch.undo()
    assert sLSTMCell_vanilla.forward is _other


def _other(self, x):
    return x


def test_another_version(monkeypatch):
    monkeypatch.setattr(sLSTMCell_vanilla, "forward", _other)
    told = r"xlstm 2\.\d.*: .*sLSTMCell_vanilla\.forward takes \(self, x\); expected"
    with pytest.warns(UserWarning, match=told) as w:
        patch = patch_xlstm()
    assert w[0].filename == __file__
    assert NAMES[2] not in patched()
    patch.undo()
    monkeypatch.undo()
    monkeypatch.delattr(NAMES[0])
    with pytest.warns(UserWarning, match=r"parallel_stabilized_simple is not found; expected"):
        patch_xlstm().undo()
