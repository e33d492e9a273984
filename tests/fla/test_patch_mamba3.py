"""The layer Mamba-3 of fla with `linattn.torch.patch_fla`, which runs on GPUs only."""

import pytest
import torch
from fla_models import build, by_steps, enlarged, tokens
from mamba_cases import agree

from linattn.torch import patch_fla
from linattn.torch.mamba_ssm import Mamba3

OPTIONS = {
    "SISO": {}, "SISO, norm": {"is_outproj_norm": True, "n_groups": 2},
    "MIMO": {"is_mimo": True, "mimo_rank": 2},
    "MIMO, norm": {"is_mimo": True, "mimo_rank": 3, "is_outproj_norm": True, "rope_fraction": 1.0},
}  # fmt: skip
EACH = pytest.mark.parametrize("name", OPTIONS)
N = 12


def model_of(name):
    return enlarged(build("Mamba3", **OPTIONS[name])).eval()


def layer_of(name):
    return model_of(name).backbone.layers[0].mixer


def same_layer(theirs, name):
    """The layer of the stand-in for mamba_ssm, with the weights of fla's."""
    options = dict(OPTIONS[name])
    ours = Mamba3(
        32, d_state=8, headdim=16, ngroups=options.pop("n_groups", 1), A_activation="softplus",
        **options,
    )  # fmt: skip
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    return ours


def inputs(batch=2):
    return torch.randn(batch, N, 32, generator=torch.Generator().manual_seed(0))


@EACH
def test_the_layer_is_that_of_mamba_ssm(name):
    theirs, x = layer_of(name), inputs().requires_grad_()
    ours = same_layer(theirs, name).double()
    wide = x.detach().double().requires_grad_()
    with patch_fla():
        y, *_ = theirs(x)
    expected = ours(wide)
    assert agree(y, expected, torch.float32)
    known = dict(ours.named_parameters())
    names, weights = zip(*theirs.named_parameters(), strict=True)
    c = torch.randn(y.shape)
    found = torch.autograd.grad(y, [x, *weights], c)
    known = torch.autograd.grad(expected, [wide, *map(known.get, names)], c.double())
    assert all(agree(g, k, torch.float32) for g, k in zip(found, known, strict=True))


@EACH
def test_a_prompt_and_tokens_are_the_whole_sequence(name):
    model, ids = model_of(name), tokens(2, N)
    with patch_fla(), torch.no_grad():
        whole = model(ids).logits
        assert agree(by_steps(model, ids, 7), whole.double(), torch.float32)


@EACH
def test_tokens_with_gradients(name):
    """The states of fla's cache are written to, and gradients pass through them."""
    model, ids = model_of(name), tokens(1, 4)
    with patch_fla():
        known = torch.autograd.grad(model(ids).logits.square().mean(), list(model.parameters()))
        loss = by_steps(model, ids, 2).square().mean()
        found = torch.autograd.grad(loss, list(model.parameters()))
    assert all(agree(g, k.double(), torch.float32) for g, k in zip(found, known, strict=True))


@EACH
def test_padded_and_packed_sequences(name):
    model, ids = model_of(name), tokens(2, N)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with patch_fla(), torch.no_grad():
        alone = model(ids[1:, 5:]).logits[0].double()
        padded = model(ids, attention_mask=mask).logits
        row = torch.cat([ids[:1], ids[1:, 5:]], 1)
        packed = model(row, cu_seqlens=torch.tensor([0, N, 2 * N - 5])).logits
        together = model(row).logits
    assert agree(padded[1, 5:], alone, torch.float32)
    assert agree(packed[0, N:], alone, torch.float32)
    assert not agree(together[0, N:], alone, torch.bfloat16)


@EACH
def test_generation_continues_a_padded_prompt(name):
    model, ids = model_of(name), tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    with patch_fla(), torch.no_grad():
        cached = model.generate(ids, attention_mask=mask, use_cache=True, **options)
        again = model.generate(ids, attention_mask=mask, use_cache=False, **options)
        alone = model.generate(ids[1:, 3:], use_cache=True, **options)
    assert torch.equal(cached, again) and torch.equal(cached[1, 6:], alone[0, 3:])


def test_only_patched():
    layer = layer_of("SISO")
    with patch_fla():
        layer(inputs())
        with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 1, 12, 12\)"):
            layer(inputs(), attention_mask=torch.ones(2, 1, N, N))
    with pytest.raises(NotImplementedError, match="CUDA"):
        layer(inputs())
