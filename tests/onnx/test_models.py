"""Layers and models of Transformers as ONNX, and calls that cannot be exported."""

import numpy as np
import pytest
import torch
from bounds import close, roundings
from onnx_models import Function, exported, kinds, linattn_onnx, run
from slow import slow

import linattn
import linattn.torch
from linattn.torch import nn

DYNAMIC = torch.export.Dim.DYNAMIC
#: A model multiplies matrices of width 16 to 64 in each of some ten layers.
ROUNDINGS = 512


def compare(model, proto, *args):
    """ONNX Runtime's result and PyTorch's, within roundings of the largest number."""
    with torch.no_grad():
        expected = model(*args).numpy()
    (actual,) = run(proto, args)
    close(actual, expected, atol=roundings(ROUNDINGS, expected))


@pytest.mark.slow
def test_language_model():
    """Of two layers, on batches and lengths other than the example's."""
    torch.manual_seed(0)
    layers = [
        nn.LinearAttention(16, num_heads=4, num_kv_heads=2),
        nn.GatedDeltaNet(16, num_heads=2),
        nn.Mamba(16),
    ]
    model = nn.TransformerLM(20, [nn.TransformerBlock(layer) for layer in layers]).eval()
    tokens = torch.arange(14).reshape(2, 7)
    proto = exported(model, (tokens,), dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},))
    assert kinds(proto) >= {"LinearAttention", "CausalConvWithState", "Scan"}
    compare(model, proto, tokens)
    compare(model, proto, torch.arange(15).reshape(1, 15))


def test_decoding():
    """A step of a layer, whose states are inputs and outputs."""
    torch.manual_seed(0)
    layer = nn.GatedDeltaNet(16, num_heads=2).eval()
    x, start = torch.randn(3, 16), layer.init_state(3)
    proto = exported(Function(layer.step), (x, start))
    with torch.no_grad():
        y, state = layer.step(x, start)
    leaves = torch.utils._pytree.tree_leaves((y, state))
    expected = [z.numpy() for z in leaves if z is not None]
    for actual, z in zip(run(proto, (x, start)), expected, strict=True):
        close(actual, z, atol=roundings(ROUNDINGS, *expected))


@pytest.mark.slow
def test_model_of_transformers():
    pytest.importorskip("transformers")
    from transformers_models import build

    model = Function(lambda tokens: language_model(tokens, use_cache=False).logits)
    model.model = language_model = build("qwen3_5")
    tokens = torch.arange(1, 15).reshape(2, 7)
    with linattn.torch.patch_transformers():
        proto = exported(model.eval(), (tokens,), dynamic_shapes=(({0: DYNAMIC, 1: DYNAMIC},),))
        assert kinds(proto) >= {"LinearAttention", "CausalConvWithState"}
        compare(model, proto, tokens)
        compare(model, proto, torch.arange(1, 26).reshape(1, 25))


def slope(x):
    return torch.autograd.grad(linattn.torch.gated(x, x, x, x[:, 0]).sum(), x)[0]


X, BOUNDS = torch.ones(5, 4, requires_grad=True), torch.tensor([0, 2, 5])
REFUSED = [
    (lambda x, ends: linattn.torch.causal(x, x, x, cu_seqlens=ends), (X, BOUNDS),
     "causal with cu_seqlens .* key_lengths"),
    (lambda x: linattn.torch.causal(x, x, x, return_state="exact")[0], (X,),
     "causal with an ExactState .* return_state=True"),
    (slope, (X,), "gated with a gradient .* its output alone"),
]  # fmt: skip


@pytest.mark.parametrize("refused", [REFUSED[0], *slow(*REFUSED[1:])])
def test_what_cannot_be_exported(refused):
    call, args, words = refused
    with pytest.raises(NotImplementedError, match=words):
        exported(Function(call), args)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"opset_version": 28}, "opset_version is 28; expected 18 to 27"),
     ({"opset_version": 17}, "opset_version is 17"),
     ({"dynamo": False}, "dynamo is False; expected True")],
)  # fmt: skip
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        linattn_onnx.export(torch.nn.Identity(), (torch.ones(1),), **options)


@pytest.mark.slow
def test_errors_of_the_exporter_stay():
    model = Function(lambda x: torch.tensor(np.asarray(x.tolist())))
    with pytest.raises(torch.onnx.OnnxExporterError, match="Failed to"):
        exported(model, (torch.ones(2),))
