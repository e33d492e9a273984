"""Models of fla with `linattn.torch.patch_fla`: training, generation, packed sequences."""

import pytest
import torch
from fla_models import FAMILIES, PACKED, build, by_steps, enlarged, tokens

pytestmark = pytest.mark.usefixtures("fla_patched", "one_torch_thread")


def each_of(families):
    return pytest.mark.parametrize("name", families)


def close(a, b, factor=1.0):
    """Within the rounding of two orders of summation in float32, over a few layers."""
    torch.testing.assert_close(a, b, rtol=0, atol=factor * 2e-5 * b.abs().max().item())


@each_of(FAMILIES)
def test_twenty_steps_lower_the_loss(name):
    model, ids = build(name).train(), tokens(2, 24)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(x.grad is None or x.grad.isfinite().all() for x in model.parameters())


@each_of(sorted(FAMILIES.keys() - {"ABC"}))
def test_steps_with_a_cache_are_the_whole_sequence(name):
    """A prompt, then one token after another.

    ABC's state in fla lacks the sums over which its slots are normalised.
    """
    model, ids = build(name).eval(), tokens(2, 14)
    with torch.no_grad():
        whole = model(ids).logits
        close(by_steps(model, ids, 9), whole)


@each_of(sorted(FAMILIES.keys() - {"ABC"}))
def test_generate(name):
    model, ids = build(name).eval(), tokens(2, 9)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        cached = model.generate(ids, use_cache=True, **options)
        again = model.generate(ids, use_cache=False, **options)
    assert torch.equal(cached, again)


def packed_row():
    """Sequences, the row that has them all, and their bounds."""
    parts = [tokens(1, n, seed=n) for n in (5, 8, 1)]
    return parts, torch.cat(parts, 1), torch.tensor([0, 5, 13, 14])


def difference(a, b):
    """As a part of what `close` lets pass."""
    return (a - b).abs().max() / (2e-5 * b.abs().max())


@each_of(PACKED)
def test_packed_sequences_stay_apart(name):
    model, (parts, row, bounds) = enlarged(build(name)).train(), packed_row()
    packed = model(row, cu_seqlens=bounds).logits
    alone = torch.cat([model(x).logits for x in parts], 1)
    assert difference(model(row).logits, alone) > 1000  # as a single sequence
    close(packed, alone)
    ours, theirs = (_gradient(model, x) for x in (packed, alone))
    close(ours, theirs, 10)


def test_packed_sequences_of_linear_attention():
    """fla's layer keeps them apart; its model does not hand cu_seqlens on to the layer."""
    model, (parts, row, bounds) = enlarged(build("LinearAttention")), packed_row()
    with torch.no_grad():
        alone = torch.cat([model(x).logits for x in parts], 1)
        packed = model(row, cu_seqlens=bounds).logits
        assert difference(packed, alone) > 1000
        assert torch.equal(packed, model(row).logits)
        layer, embed = model.model.layers[0].attn, model.get_input_embeddings()
        alone = torch.cat([layer(embed(x))[0] for x in parts], 1)
        assert difference(layer(embed(row))[0], alone) > 1000
        close(layer(embed(row), cu_seqlens=bounds)[0], alone)


def _gradient(model, logits):
    """That of all parameters, as one vector: some parts of it are 0 but for rounding."""
    parameters = [x for x in model.parameters() if x.requires_grad]
    gradients = torch.autograd.grad(
        logits.square().mean(), parameters, allow_unused=True, materialize_grads=True
    )
    return torch.cat([x.flatten() for x in gradients])


@each_of(FAMILIES)
def test_bfloat16(name):
    """Near float32's results, by the 8 bits that bfloat16 keeps in each of some ten products."""
    wide, ids = build(name).train(), tokens(2, 24)
    narrow = build(name).train().to(torch.bfloat16)
    loss = narrow(ids, labels=ids).loss
    loss.backward()
    expected = wide(ids, labels=ids).loss
    assert abs(loss.item() - expected.item()) < 16 * 2**-8 * expected.item()
    assert all(x.grad is None or x.grad.isfinite().all() for x in narrow.parameters())
