"""Layers of Mamba beside Transformers' mixers: weights, results, states."""

from functools import partial

import pytest
import torch
import transformers
from bounds import close, roundings
from layer_cases import BATCH, E, N, by_steps, made, tokens, within
from memory import traced
from transformers.cache_utils import DynamicCache
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from linattn.torch import mamba_ssm, nn

pytestmark = pytest.mark.usefixtures("seeded")
_OTHERS = {"state_dim": 5, "dt_rank": 3, "conv_size": 3, "bias": True, "conv_bias": False}
_THEIRS = {
    "state_size": 5, "time_step_rank": 3, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False
}  # fmt: skip
_MAMBA2 = {"head_dim": 6, "num_heads": 4, "state_size": 5, "n_groups": 2, "chunk_size": 4}
#: A layer, the library's, and options of its configuration.
PAIRS = {
    "published": (partial(nn.Mamba, E), MambaMixer, {"state_size": 16}),
    "others": (partial(nn.Mamba, E, **_OTHERS), MambaMixer, _THEIRS),
    "mamba_ssm": (partial(mamba_ssm.Mamba, E), MambaMixer, {}),
    "mamba_ssm 2": (
        partial(mamba_ssm.Mamba2, E, headdim=6, d_state=5, ngroups=2), Mamba2Mixer, _MAMBA2,
    ),
}  # fmt: skip
OURS = pytest.mark.parametrize("pair", ["published", "others"])


def both(pair):
    """The two layers with the same weights, float32; each loads the other's."""
    new, kind, theirs = PAIRS[pair]
    layer = made(new, torch.float32)
    make = transformers.Mamba2Config if kind is Mamba2Mixer else transformers.MambaConfig
    mixer = kind(make(hidden_size=E, num_hidden_layers=1, vocab_size=3, **theirs), 0)
    mixer.load_state_dict(layer.state_dict())
    layer.load_state_dict(mixer.state_dict())
    return layer, mixer


@pytest.mark.parametrize("pair", PAIRS)
def test_outputs_and_gradients_are_those_of_the_mixer(pair):
    layer, mixer = both(pair)
    x = tokens(dtype=torch.float32).requires_grad_()
    cotangent = torch.randn_like(x)
    found = []
    for module in (layer, mixer):
        y = module(x)
        parameters = dict(sorted(module.named_parameters()))
        grads = torch.autograd.grad((y * cotangent).sum(), (x, *parameters.values()))
        found.append((y, *grads))
    (y, *grads), (expected, *exact) = found
    within(y, expected)
    largest = max(float(g.abs().max()) for g in exact)
    for g, h in zip(grads, exact, strict=True):
        close(g.numpy(), h.numpy(), atol=4000 * 2**-24 * largest)


@OURS
def test_steps_are_those_of_the_mixer_with_its_cache(pair):
    layer, mixer = both(pair)
    x, cut = tokens(dtype=torch.float32), 6
    cache = DynamicCache(config=mixer.config)
    with torch.no_grad():
        parts = [mixer(x[:, :cut], cache_params=cache)]
        parts += [mixer(x[:, i : i + 1], cache_params=cache) for i in range(cut, N)]
        first, state = layer(x[:, :cut], return_state=True)
        rest, state = by_steps(layer, x[:, cut:], state)
    within(torch.cat([first, rest], 1), torch.cat(parts, 1))
    within(state.memory.s, cache.get_recurrent_state(0))
    within(state.conv, cache.get_conv_state(0)[..., 1:])


def test_padding_in_front_is_as_with_an_attention_mask():
    layer, mixer = both("published")
    x, mask = tokens(dtype=torch.float32), torch.zeros(BATCH, N, dtype=torch.bool)
    mask[1, :4] = mask[2, :1] = True
    y, expected = layer(x, key_padding_mask=mask), mixer(x, attention_mask=~mask)
    within(y[~mask], expected[~mask])


def test_initial_weights_are_the_published_ones():
    layer = nn.Mamba(64, state_dim=3, bias=True)
    assert layer.dt_rank == 4 and layer.channels == 128
    close(layer.A_log.detach().exp(), torch.tensor([1.0, 2, 3]).expand(128, 3), atol=1e-6)
    assert (layer.D == 1).all() and not layer.in_proj.bias.any() and not layer.out_proj.bias.any()
    dt = torch.nn.functional.softplus(layer.dt_proj.bias.detach())
    slack = roundings(64, dt.numpy())
    assert 0.001 - slack <= dt.min() < 0.003 and 0.03 < dt.max() <= 0.1 + slack
    assert 0.4 < layer.dt_proj.weight.abs().max() <= 0.5


def test_operands_are_read_in_place():
    """The convolution and the scan allocate their results, and copy none of x, u, z, B and C."""
    layer, x = nn.Mamba(E), tokens(n=4000, dtype=torch.float32)
    with torch.no_grad():
        peak, _ = traced(lambda: layer(x))
    results = 2 * BATCH * 4000 * layer.channels * 4
    assert results <= peak < 1.1 * results
