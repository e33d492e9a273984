"""Errors of linattn.torch.nn: what an argument was and what was expected."""

import warnings

import pytest
import torch
from layer_cases import BATCH, KINDS, E, N, tokens

import linattn
from linattn.torch import nn


def nested(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return torch.nested.nested_tensor([x[0], x[1, :2]])


MADE = [
    (lambda: nn.LinearAttention(10, 4), "LinearAttention: embed_dim is 10; expected a multiple of "
     "num_heads, which is 4"),
    (lambda: nn.LinearAttention(12, 4, num_kv_heads=3), "num_heads is 4; expected a multiple of "
     "num_kv_heads, which is 3"),
    (lambda: nn.LinearAttention(12, 4, feature_map="nosuch"), "feature_map is 'nosuch'; expected"),
    (lambda: nn.LinearAttention(12, 4, dropout=1.5), "dropout is 1.5; expected a number from 0"),
    (lambda: nn.LinearAttention(12, 0), "num_heads is 0; expected at least 1"),
    (lambda: nn.LinearAttention(12, 4, feature_map=linattn.feature_maps.PositiveRandomFeatures
     .sample(4, 6)), r"omega of shape \(4, 6\); expected \(3, features\)"),
    (lambda: nn.LinearAttention(12, 4, feature_map=linattn.feature_maps.FeedforwardKernel.glu(
        2, 3)), r"weights of shape \(2, 3, 3\); expected \(3, 3\) or \(4, 3, 3\)"),
    (lambda: nn.LinearAttention(12, 4, num_kv_heads=2, feature_map=linattn.feature_maps
     .FeedforwardKernel.glu(4, 3)), r"weights of shape \(4, 3, 3\); expected \(3, 3\), as num_kv"),
    (lambda: nn.LinearAttention(12, 4, eps=-1.0), "eps is -1.0; expected a number >= 0"),
    (lambda: nn.PerformerAttention(12, 4, 0), "num_features is 0; expected at least 1"),
    (lambda: nn.FeedforwardKernelAttention(12, 4, kind="x"), "kind is 'x'; expected one of"),
    (lambda: nn.FeedforwardKernelAttention(12, 4, kind="glu", rank=1), "rank is 1; expected None"),
    (lambda: nn.FastWeightAttention(12, 4, nu=0), "nu is 0; expected at least 1"),
    (lambda: nn.GatedDeltaNet(12, 4, num_v_heads=6), "num_v_heads is 6; expected a multiple of"),
    (lambda: nn.GatedDeltaNet(12, 4, norm_eps=-1.0), "norm_eps is -1.0; expected a number >= 0"),
    (lambda: nn.GatedAttention(10, 3), r"expand \* embed_dim is 20; expected a multiple of num_he"),
    (lambda: nn.GatedAttention(12, 4, num_groups=3), "num_heads is 4; expected a multiple of"),
    (lambda: nn.Mamba(12, dt_rank=0), "dt_rank is 0; expected at least 1"),
    (lambda: nn.Mamba(12, conv_size=0), "size is 0; expected at least 1"),
    (lambda: nn.LinformerAttention(12, 4, 16, 4, sharing="x"), "sharing is 'x'; expected one of"),
    (lambda: nn.LinformerAttention(12, 4, 0, 4), "max_length is 0; expected at least 1"),
    (lambda: nn.SoftmaxAttention(10, 4), "embed_dim is 10; expected a multiple of num_heads"),
    (lambda: nn.TransformerLM(5, []), "blocks is empty; expected at least one TransformerBlock"),
    (lambda: nn.TransformerLM(5, [nn.TransformerBlock(nn.SoftmaxAttention(x, 1)) for x in (2, 3)]),
     r"blocks\[1\] has embed_dim 3; expected 2, as blocks\[0\]"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), MADE, ids=[x[1][:40] for x in MADE])
def test_what_cannot_be_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_types():
    with pytest.raises(TypeError, match="attention is a Linear; expected a layer of linattn"):
        nn.TransformerBlock(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"attention is a int; .* such as LinearAttention\(embed"):
        nn.TransformerBlock(64)
    with pytest.raises(TypeError, match=r"blocks\[0\] is a Linear; expected a TransformerBlock"):
        nn.TransformerLM(5, [torch.nn.Linear(2, 2)])
    with pytest.raises(TypeError, match=r"LinearAttention: num_heads is 2\.5; expected an integer"):
        nn.LinearAttention(12, 2.5)


LAYERS = [x for x in vars(nn).values() if isinstance(x, type) and issubclass(x, nn.Attention)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [(lambda: nn.TransformerBlock(64, 4), "attention, and by keyword dim_feedforward, activ"),
     (lambda: nn.TransformerLM(5, [], 3), "num_tokens and blocks, and by keyword max_length, "),
     (lambda: nn.SoftmaxAttention(8, 2, True), "embed_dim and num_heads, and by keyword caus"),
     *[(lambda kind=x: kind(8, 2, 3, 4, 5), "by keyword") for x in LAYERS[1:]]]
)  # fmt: skip
def test_too_many_arguments_by_position(make, expected):
    with pytest.raises(TypeError, match=rf"\w+: \d arguments are given by position; .*{expected}"):
        make()


@pytest.mark.parametrize("new", KINDS)
def test_wrong_calls(new):
    layer, x = new(), tokens(dtype=torch.float32)
    name = type(layer).__name__
    mask, lengths = torch.zeros(BATCH, N, dtype=torch.bool), torch.full((BATCH,), N)
    for options, error, message in (
        ({"x": x[..., 1:]}, ValueError, r"x has shape \(3, 11, 11\); expected \(batch, tokens, 12"),
        ({"x": x[0]}, ValueError, r"x has shape \(11, 12\); expected"),
        ({"x": x.numpy()}, TypeError, "x is a ndarray; expected a tensor"),
        ({"x": nested(x)}, TypeError, "x is a nested tensor; expected a plain one"),
        ({"key_padding_mask": mask[:, 1:]}, ValueError,
         r"key_padding_mask has shape \(3, 10\); expected \(3, 11\)"),
        ({"key_padding_mask": mask.float()}, TypeError, "key_padding_mask has dtype torch.float32"),
        ({"key_lengths": lengths[1:]}, ValueError, r"key_lengths has shape \(2,\); expected \(3"),
        ({"key_lengths": lengths + 1}, ValueError, "values from 12 to 12; expected 0 to 11"),
        ({"key_lengths": lengths.float()}, TypeError, "key_lengths has dtype torch.float32"),
        ({"key_lengths": 5}, TypeError, "key_lengths is a int; expected a tensor"),
        ({"key_lengths": lengths, "key_padding_mask": mask}, ValueError, "are both given"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"{name}: .*{message}"):
            layer(**{"x": x} | options)
    with pytest.raises(TypeError, match=f"{name}.forward: 2 .* expected x, and by keyword key_len"):
        layer(x, lengths)
    with pytest.raises(TypeError, match=f"{name}.forward: mask is not .* expected key_lengths"):
        layer(x, mask=~mask)
    with pytest.raises(TypeError, match=f"{name}.forward: y is not an argument; expected x, key"):
        layer(x, y=x)
    if isinstance(layer, nn.LinformerAttention):
        with pytest.raises(ValueError, match="expected at most max_length = 16 tokens"):
            layer(torch.ones(2, 17, E))
    if not layer.causal:
        return
    state = layer.init_state(BATCH)
    with pytest.raises(ValueError, match=rf"{name}.step: x has shape \(3, 11, 12\); expected"):
        layer.step(x, state)
    for call in (lambda: layer.step(x[:, 0], None), lambda: layer(x, state=x)):
        with pytest.raises(TypeError, match=rf"{name}.*: state is a \w+; expected a \w+, from"):
            call()
    other = layer.init_state(BATCH + 1)
    for call in (lambda: layer.step(x[:, 0], other), lambda: layer(x, state=other)):
        with pytest.raises(ValueError, match=rf"{name}.*: state is of 4 sequences; expected 3"):
            call()
    with pytest.raises(ValueError, match="batch is -1; expected at least 0"):
        layer.init_state(-1)
    for wrong in (True, 2.0):
        with pytest.raises(TypeError, match=rf"{name}.init_state: batch is {wrong}; expected an"):
            layer.init_state(wrong)
