"""Models of Transformers run by linattn: the same results as with the library's own functions.

Weights are random and models small; nothing is downloaded.
"""

import functools

import pytest
import torch
import transformers_door as door
from slow import slow
from transformers_cases import (
    FAMILIES,
    cache_of,
    close,
    each_of,
    functions,
    gated_delta_operands,
    normal,
    refuse,
    same_gradients,
)
from transformers_door import ALL_LINEAR, tokens
from transformers_models import build, module

import linattn.torch as la
from linattn.torch import patch_transformers
from linattn.torch.transformers import _tokens

families = each_of(FAMILIES)


@pytest.fixture(scope="module")
def model():
    """Models by family, built once and left as they are."""
    return functools.cache(build)


@families
def test_logits(family, model, monkeypatch):
    """Of whole sequences, and of one that begins later."""
    ids, mask = tokens(2, 21), torch.ones(2, 21, dtype=torch.long)
    mask[1, :5] = 0
    with torch.no_grad():
        before, padded = model(family)(ids).logits, model(family)(ids, attention_mask=mask).logits
        refuse(monkeypatch, family)
        with patch_transformers():
            close(model(family)(ids).logits, before)
            after = model(family)(ids, attention_mask=mask).logits
    close(after[mask == 1], padded[mask == 1])


@families
def test_generate(family, model, monkeypatch):
    """The same tokens, by prefill and by steps on the cache."""

    def generate():
        return model(family).generate(
            tokens(2, 5), max_new_tokens=6, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip

    before = generate()
    refuse(monkeypatch, family)
    with patch_transformers():
        after = generate()
    assert torch.equal(after.sequences, before.sequences)
    close(torch.stack(after.logits), torch.stack(before.logits))


@each_of(sorted({*FAMILIES} - {"lfm2", "recurrent_gemma", "rwkv"}))
def test_steps_write_to_the_cache(family, model, monkeypatch):
    """All steps are in place; of the families left out, states have a number a channel."""
    direct, flags = la._core.operator.direct, []

    def spy(function, operands, given, options, **more):
        settings = getattr(function, "keywords", {}) | options
        if "in_place" in settings:
            flags.append(settings["in_place"])
        return direct(function, operands, given, options, **more)

    def spy_fused(fused):
        def call(*args, in_place, **options):
            flags.append(in_place)
            return fused(*args, in_place=in_place, **options)

        return call

    for place in (la._core.operator, la.fla._token):
        monkeypatch.setattr(place, "direct", spy)
    for name in ("fused_gated_delta_step", "fused_gated_step"):
        monkeypatch.setattr(_tokens, name, spy_fused(getattr(_tokens, name)))
    ids = tokens(2, 8)
    with patch_transformers(), torch.no_grad():
        out = model(family)(ids[:, :5], use_cache=True)
        for i in range(5, 8):
            name = cache_of(out)
            out = model(family)(ids[:, i : i + 1], use_cache=True, **{name: out[name]})
    assert len(flags) >= 3 and all(flags)


def assert_same_gradients(family, trained, loss, monkeypatch):
    """The patch changes no gradient of a model's parameters by more than roundings."""

    def gradients():
        trained.zero_grad()
        loss().backward()
        return {
            name: p.grad.clone() for name, p in trained.named_parameters() if p.grad is not None
        }

    before = gradients()
    refuse(monkeypatch, family)
    with patch_transformers():
        after = gradients()
    same_gradients(after, before)


@families
def test_gradients(family, monkeypatch):
    ids, trained = tokens(2, 21), build(family).train()

    def loss():
        return trained(ids, labels=ids, use_cache=False).loss

    assert_same_gradients(family, trained, loss, monkeypatch)


#: The library trains these on a continuation of several tokens; of others its own states fail.
CONTINUED = {
    "mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2", "xlstm", "mamba",
    "jamba",
}  # fmt: skip


@each_of(sorted(CONTINUED & {*FAMILIES}))
def test_gradients_of_a_continuation(family, monkeypatch):
    """The model writes to the cache's states, which the gradients after a prefill need."""
    ids, trained = tokens(2, 12), build(family).train()

    def loss():
        with torch.no_grad():
            out = trained(ids[:, :9], use_cache=True)
        name = cache_of(out)
        logits = trained(ids[:, 9:], use_cache=True, **{name: out[name]}).logits
        return logits.square().mean()

    assert_same_gradients(family, trained, loss, monkeypatch)


#: The library mixes their sequences without an error.
SILENT = ("mamba2", "minimax", "mamba", "falcon_mamba", "jamba")
#: These have no softmax attention.
NO_SOFTMAX = ("mamba2", "mamba", "falcon_mamba")
#: A part that is not linattn's mixes them.
MIXING = ("recurrent_gemma", "rwkv", "xlstm")


@each_of([x for x in FAMILIES if x not in MIXING])
def test_packed_sequences(family):
    """Three sequences in a row are as each by itself; the library's own functions refuse them."""
    packed_model = build(family, **ALL_LINEAR.get(family, {}))

    def run(ids, **given):
        return packed_model(ids, **{"use_cache": False} | given)[0]

    ids, lengths, bounds, index, places = packed_row()
    packed = bounds | places
    if "mamba" in family:
        packed = bounds
    with torch.no_grad():
        apart = torch.cat([run(x) for x in ids.split(lengths, 1)], 1)
        if family not in SILENT:
            with pytest.raises(ValueError, match="can't keep packed sequences apart"):
                run(ids, **index, **packed)
        with patch_transformers():
            close(run(ids, **index, **packed), apart)
            close(run(ids, **packed), apart)
    with patch_transformers():  # where Mamba-2 asks for a fused form first
        close(packed_model.train()(ids, use_cache=False, **index, **packed)[0], apart)


def packed_row():
    ids, lengths, bounds, index, places = door.packed_row()
    return ids, lengths, bounds | {"max_length_q": 16, "max_length_k": 16}, index, places


@pytest.mark.parametrize("attention", ["sdpa", *slow("eager")])
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*MIXING, *ALL_LINEAR, *NO_SOFTMAX}))
def test_packed_sequences_of_softmax_attention(family, attention):
    """The library's masks do not separate them without position_ids, or beside a cache."""
    m = build(family)
    m.set_attn_implementation(attention)
    ids, lengths, bounds, index, places = packed_row()
    with torch.no_grad(), patch_transformers():
        apart = torch.cat([m(x, use_cache=False)[0] for x in ids.split(lengths, 1)], 1)
        close(m(ids, use_cache=False, **bounds)[0], apart)
        close(m(ids, use_cache=False, **index)[0], apart)
        close(m(ids, use_cache=True, **bounds, **places)[0], apart)
        mask = torch.ones_like(ids)
        close(m(ids, use_cache=False, attention_mask=mask, **bounds, **places)[0], apart)


def test_packed_sequences_after_other_tokens():
    """A mask of earlier keys, and other kinds of masks, are not separated."""
    m, bounds = build("qwen3_next"), packed_row()[2]
    layer = next(x for x in m.modules() if type(x).__name__ == "Qwen3NextAttention")
    x, mask = normal(1, 21, 32), torch.ones(1, 1, 21, 25, dtype=torch.bool)
    turns = m.model.rotary_emb(x, torch.arange(21)[None])
    with torch.no_grad(), patch_transformers():
        with pytest.raises(ValueError, match=r"Qwen3NextAttention: packed.*no tokens in the cache"):
            layer(x, turns, mask, **bounds)
        with pytest.raises(ValueError, match=r"Qwen3NextAttention: packed.*'flex_attention'"):
            layer.config._attn_implementation = "flex_attention"
            layer(x, turns, None, **bounds)


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "jamba", "zamba"])
@pytest.mark.parametrize("packing", ["cu_seq_lens_q", "seq_idx"])
def test_packed_sequences_of_a_scan(family, packing):
    """The library gives its scan no packing keywords: layers hand them to linattn's."""
    m = build(family)
    several = {"cu_seq_lens_q": torch.tensor([0, 2, 5]), "seq_idx": torch.tensor([[0, 0, 1, 1, 1]])}
    one = {"cu_seq_lens_q": torch.tensor([0, 5]), "seq_idx": torch.zeros(2, 5, dtype=torch.int32)}
    layer = next(x for x in m.modules() if type(x).__name__.endswith("Mixer"))
    x = normal(2, 5, 32)
    with torch.no_grad(), patch_transformers():
        apart = torch.cat([layer(y) for y in x[:1].split([2, 3], 1)], 1)
        close(layer(x[:1], **{packing: several[packing]}), apart)
        rows = x if packing == "seq_idx" else x[:1]
        close(layer(rows, **{packing: one[packing]}), layer(rows))
        if packing == "seq_idx":
            with pytest.raises(ValueError, match="does not separate"):
                layer(x, seq_idx=several[packing].expand(2, -1))


def test_packed_sequences_without_the_scan(monkeypatch):
    """Layers whose scan is the library's refuse them."""
    m = module("mamba")

    def mamba_selective_scan():
        pass

    layer = build("mamba").backbone.layers[0].mixer
    monkeypatch.setattr(m, "mamba_selective_scan", mamba_selective_scan)
    with pytest.warns(UserWarning):
        patch = patch_transformers()
    with patch, pytest.raises(ValueError, match="does not separate"):
        layer(normal(1, 5, 32), seq_idx=torch.tensor([[0, 0, 1, 1, 1]]))


def test_packed_sequences_with_gradient_checkpointing():
    """Mamba's blocks would compute its layers again without packing keywords."""
    m = build("mamba").train()
    m.activation_checkpointing_enable()
    with patch_transformers(), pytest.raises(ValueError, match="gradient checkpointing"):
        m(tokens(1, 5), cu_seq_lens_q=torch.tensor([0, 2, 5]))


@pytest.mark.parametrize("family", [*MIXING, "glm5_next"])
def test_packed_sequences_that_a_model_mixes(family):
    m = build(family)
    with torch.no_grad(), patch_transformers():
        with pytest.raises(ValueError, match="does not separate"):
            m(tokens(1, 5), use_cache=False, cu_seq_lens_q=torch.tensor([0, 2, 5]))
        m(tokens(1, 5), use_cache=False, cu_seq_lens_q=torch.tensor([0, 5]))


@pytest.mark.parametrize(
    ("family", "name"),
    [("inkling", "InklingAttention"), ("inkling2", "Inkling2FullAttention"),
     ("inkling2", "Inkling2SlidingAttention")],
)  # fmt: skip
def test_packed_sequences_that_a_convolution_mixes(family, name):
    """Its layers hand no keywords on to their short convolutions."""
    with patch_transformers(), pytest.raises(ValueError, match=f"{name}: .*does not separate"):
        getattr(module(family), name).forward(None, cu_seq_lens_q=torch.tensor([0, 2, 5]))


def test_packed_sequences_in_several_rows():
    """The library's functions do not look at cu_seq_lens_q: they would mix the sequences."""
    delta = functions("qwen3_next")[1].torch_chunk_gated_delta_rule
    operands = gated_delta_operands(3, 2, 2)
    with pytest.raises(ValueError, match="cu_seq_lens_q is given for 2 rows"):
        delta(*operands, cu_seq_lens_q=torch.tensor([0, 3, 6]))


@families
def test_bfloat16(family, monkeypatch):
    half = build(family).to(torch.bfloat16)
    refuse(monkeypatch, family)
    with patch_transformers():
        loss = half(tokens(2, 21), labels=tokens(2, 21)).loss
        loss.backward()
        assert loss.isfinite()
        for name, p in half.named_parameters():
            assert p.grad is None or p.grad.isfinite().all(), name
        ids = half.generate(tokens(1, 5), max_new_tokens=3, do_sample=False)
    assert ids.shape == (1, 8)


@pytest.mark.parametrize("family", ["qwen3_5", "kimi_linear", "mamba2", "mamba", *MIXING])
def test_autocast(family, model):
    """Products are of 16 bits then, in the library's functions and in linattn's."""

    def loss():
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return model(family)(tokens(2, 9), labels=tokens(2, 9), use_cache=False).loss

    before = loss()
    with patch_transformers(), torch.autocast("cpu", torch.bfloat16):
        close(loss(), before, part=2**-7)
        model(family).generate(tokens(1, 5), max_new_tokens=3, do_sample=False)
