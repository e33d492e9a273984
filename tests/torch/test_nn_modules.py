"""Layers of linattn.torch.nn as modules: copies, saved weights, dtypes, compile, export."""

import copy
import functools
import pickle

import layer_cases as cases
import pytest
import torch
from bounds import close
from layer_cases import BATCH, EACH, KINDS, MASK, E, N, by_steps, leaves, made, tokens, within
from slow import only, slow
from torch._subclasses import FakeTensorMode
from torch_cases import reloaded

from linattn.torch import nn

pytestmark = pytest.mark.usefixtures("seeded")


@EACH
def test_dropout_only_in_training(new):
    layer, x = new(dropout=0.5), tokens(dtype=torch.float32)
    y = layer.eval()(x)
    assert torch.equal(layer(x), y)
    z = layer.train()(x)
    dropped = z == 0
    assert 0.3 < dropped.float().mean() < 0.7
    torch.testing.assert_close(z[~dropped], 2 * y[~dropped])
    if layer.causal:
        layer.dropout.p = 1.0  # in every form
        assert not layer(x, state=layer.init_state(BATCH), return_state=True)[0].any()
        assert not layer.step(x[:, 0], layer.init_state(BATCH))[0].any()


@EACH
def test_copies_and_saved_weights(new):
    layer, other, x = made(new), made(new), tokens()
    y = layer(x)
    assert not torch.equal(other(x), y)
    other.load_state_dict(layer.state_dict())
    for same in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(same(x), y)
    assert str(layer) == str(other) and f"embed_dim={E}" in str(layer)
    layer.reset_parameters()
    assert not torch.equal(layer(x), y)
    assert torch.equal(other(x), y)


@cases.EACH_CAUSAL
def test_states_are_printed_by_shape_and_dtype(new):
    state = made(new).init_state(BATCH)
    assert repr(state).startswith(f"{type(state).__name__}(")
    assert "float64>" in repr(state) and "tensor(" not in repr(state)
    model = nn.ModelState((state,), torch.zeros(BATCH))
    assert repr(model) == f"ModelState(blocks=[{state}], position=<{BATCH} torch.float32>)"


@EACH
def test_weights_are_drawn_where_there_were_none(new):
    """A layer made without memory has, after a reset, weights that a seed repeats."""
    layer = new(device="meta").to_empty(device="cpu")
    drawn = []
    for _ in range(2):
        with torch.no_grad():
            for x in layer.state_dict().values():
                x.fill_(torch.nan)
        torch.manual_seed(1)
        layer.reset_parameters()
        drawn.append({name: x.clone() for name, x in layer.state_dict().items()})
    assert all(x.isfinite().all() for x in drawn[0].values())
    assert all(torch.equal(x, drawn[1][name]) for name, x in drawn[0].items())
    assert layer(tokens(dtype=torch.float32)).isfinite().all()


@EACH
def test_dtypes_and_devices(new):
    layer = new(device="meta", dtype=torch.bfloat16)
    tensors = [*layer.parameters(), *layer.buffers()]
    assert {(x.device.type, x.dtype) for x in tensors} == {("meta", torch.bfloat16)}
    y = layer(torch.empty(2, 5, E, device="meta", dtype=torch.bfloat16))
    assert y.shape == (2, 5, E) and y.is_meta and y.dtype is torch.bfloat16
    with torch.device("meta"):
        assert all(x.is_meta for x in new().state_dict().values())
    layer, x = new(), tokens(dtype=torch.float32)
    y = layer(x)
    narrow = copy.deepcopy(layer).to(torch.bfloat16)(x.bfloat16())
    assert narrow.dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        cast = layer(x)
    for z in (narrow, cast):
        error = (z.float() - y).square().mean().sqrt() / y.square().mean().sqrt()
        assert error < 16 * 2**-8  # as many roundings of bfloat16


@pytest.mark.parametrize("new", cases.RECURRENT_KINDS)
def test_states_of_narrow_layers(new):
    """Hold what is computed in, and steps go on from them."""
    layer, x = new(dtype=torch.bfloat16), tokens(dtype=torch.bfloat16)
    y, state = layer(x, return_state=True)
    dtype = torch.bfloat16 if isinstance(layer, nn.SoftmaxAttention) else torch.float32
    for tree in (state, layer.init_state(BATCH)):
        assert {z.dtype for z in leaves(tree) if z is not None} == {dtype}
    stepped, _ = by_steps(layer, x, layer.init_state(BATCH))
    close(stepped.detach().float(), y.detach().float(), atol=2**-6 * y.abs().max().item())


@pytest.mark.parametrize("new", only(["gated-delta-net", "linformer-heads"], KINDS))
def test_compile(new):
    """In one graph: a sequence, its state, a step, and gradients; padding as well."""
    layer, x = made(new), tokens()

    def run(x, mask):
        if not layer.causal:
            return (layer(x, key_padding_mask=mask).square().sum(),)
        y, state = layer(x, key_padding_mask=mask, return_state=True)
        z, _ = layer.step(x[:, 0], state)
        fields = [s for s in leaves(state) if s is not None and s.is_floating_point()]
        return y.square().sum() + z.square().sum(), *fields

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (run, compiled):
        loss, *state = function(x, MASK)
        grads.append([loss.detach(), *torch.autograd.grad(loss, layer.parameters()), *state])
    for a, b in zip(*grads, strict=True):
        within(a, b)


def test_compiled_once_for_all_sizes():
    layer = made(functools.partial(nn.LinearAttention, E, 2)).eval().requires_grad_(False)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for mask in (MASK, MASK[1:, :7].contiguous()):
            x = tokens(*mask.shape)
            within(compiled(x, key_padding_mask=mask), layer(x, key_padding_mask=mask))


@pytest.mark.parametrize("method", ["forward", *slow("step")])
def test_classes_share_no_limit_of_recompilations(method):
    """Torch.compile counts the compiled versions of each code, and fails or falls back past 8."""
    kinds = nn.LinearAttention, nn.FastWeightAttention
    layers = [kind(E, 2).eval() for kind in kinds]
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1):
        for layer in layers:
            x = tokens(dtype=torch.float32)
            call = layer if method == "forward" else layer.step
            args = (x,) if method == "forward" else (x[:, 0], layer.init_state(BATCH))
            compiled = torch.compile(call, fullgraph=True, backend="eager")
            torch.testing.assert_close(compiled(*args), call(*args))


@EACH
def test_nothing_to_do(new):
    layer = new()
    assert layer(torch.ones(0, 5, E)).shape == (0, 5, E)
    assert layer(torch.ones(2, 0, E)).shape == (2, 0, E)
    if layer.causal:
        for recorded in (True, False):  # which steps of some layers do in one call
            with torch.set_grad_enabled(recorded):
                y, _ = layer.step(torch.ones(0, E), layer.init_state(0))
            assert y.shape == (0, E)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's own attention
@pytest.mark.parametrize("new", KINDS)
def test_padding_of_tensors_without_values(new):
    """On the meta device, fake, and mapped over by vmap: their values cannot be checked."""
    layer, x, lengths = made(new), tokens(), torch.tensor([N, 4, 0])

    def run(layer, x, mask, lengths):
        return layer(x, key_padding_mask=mask), layer(x, key_lengths=lengths)

    args = x, MASK, lengths
    expected = run(layer, *args)
    on_meta = new(device="meta", dtype=x.dtype)
    for y in run(on_meta, *(x.to("meta") for x in args)):
        assert y.shape == x.shape and y.is_meta
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for y in run(layer, *map(mode.from_tensor, args)):
            assert y.shape == x.shape
    mapped = torch.vmap(lambda *args: run(layer, *(x[None] for x in args)))(*args)
    for y, z in zip(mapped, expected, strict=True):
        within(y[:, 0], z)


@pytest.mark.parametrize("max_length", [None, 8])
def test_models_of_tensors_without_values(max_length):
    def new(**factory):
        block = nn.TransformerBlock(nn.GatedDeltaNet(E, 2, **factory), **factory)
        return nn.TransformerLM(7, [block], max_length=max_length, **factory).eval()

    def run(model, tokens):
        y, state = model(tokens, return_state=True)
        return y, model.step(tokens[:, 0], state)[0]

    model, x = new(), torch.tensor([[1, 5, 0], [3, 3, 6]])
    expected = run(model, x)
    for y, z in zip(run(new(device="meta"), x.to("meta")), expected, strict=True):
        assert y.shape == z.shape and y.is_meta
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for y, z in zip(run(model, mode.from_tensor(x)), expected, strict=True):
            assert y.shape == z.shape
    for y, z in zip(torch.vmap(lambda x: run(model, x[None]))(x), expected, strict=True):
        torch.testing.assert_close(y[:, 0], z)


class Quantised(torch.nn.Module):
    """A projection that PyTorch has quantised, whose weight is a method, here without rounding."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def weight(self):
        return self.linear.weight

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("new", [x for x in cases.RECURRENT_KINDS if x.id != "mamba"])
def test_states_of_quantised_layers(new):
    layer = new()
    expected = layer.init_state(2)
    for name, child in [*layer.named_children()]:
        if name.endswith("_proj"):
            setattr(layer, name, Quantised(child))
    state = layer.init_state(2)
    torch.testing.assert_close(state, expected)
    assert layer.step(torch.ones(2, E), state)[0].shape == (2, E)


@pytest.mark.parametrize("new", cases.RECURRENT_KINDS)
def test_saved_states_load(new, tmp_path):
    """As torch.load does by default: weights_only=True."""
    block = nn.TransformerBlock(new())
    state = nn.TransformerLM(7, [block]).init_state(2)
    torch.save(state, tmp_path / "state.pt")
    found = torch.load(tmp_path / "state.pt", weights_only=True)
    torch.testing.assert_close(found, state, rtol=0, atol=0)
    assert type(found.blocks[0]) is type(state.blocks[0])


@pytest.mark.parametrize("new", cases.RECURRENT_KINDS)
def test_exported_states(new):
    """In programs that are saved and loaded."""
    model = nn.TransformerLM(7, [nn.TransformerBlock(new())]).eval()

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens, state):
            return self.model.step(tokens, state)

    args = torch.tensor([1, 5]), model.init_state(2)
    with torch.no_grad():
        program = reloaded(torch.export.export(Step(), args))
        found, expected = program.module()(*args), model.step(*args)
    assert type(found[1]) is nn.ModelState
    torch.testing.assert_close(found, expected)
