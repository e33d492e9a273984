"""Models of Transformers run by linattn: the same results as with the library's own functions.

Weights are random and models small; nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import inspect
import logging
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("ml_dtypes")

import linattn.torch
from linattn.torch import patch_transformers, patched
from linattn.torch.transformers import STAND_INS
from transformers_models import MODELS, VOCABULARY, build, module

FAMILIES = [family for family in MODELS if importlib.util.find_spec(f"transformers.models.{family}")]
families = pytest.mark.parametrize("family", FAMILIES)
#: What is promised of float32: differences as a part of the largest entry.
PART = 1e-4


@pytest.fixture(scope="module")
def model():
    """Models by family, built once and left as they are."""
    return functools.cache(build)


@pytest.fixture(autouse=True)
def unpatched():
    assert patched() == []
    yield
    assert patched() == []


def tokens(*shape):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def close(a, b, *, part=PART, more=0.0):
    torch.testing.assert_close(a, b, rtol=0, atol=part * b.abs().max().item() + more)


def refuse(monkeypatch, family):
    """The library's own functions raise, so that nothing is left to them."""
    m = module(family)
    names = [name for name in STAND_INS if hasattr(m, name)]
    for name in names:

        @functools.wraps(getattr(m, name))
        def raises(*args, **kwargs):
            raise AssertionError("the library's own function is called")

        monkeypatch.setattr(m, name, raises)
    assert names or family == "minimax"


# --- models -------------------------------------------------------------------------------


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


@families
def test_gradients(family, monkeypatch):
    ids, trained = tokens(2, 21), build(family).train()

    def gradients():
        trained.zero_grad()
        trained(ids, labels=ids, use_cache=False).loss.backward()
        return {
            name: p.grad.clone() for name, p in trained.named_parameters() if p.grad is not None
        }

    before = gradients()
    refuse(monkeypatch, family)
    with patch_transformers():
        after = gradients()
    assert before.keys() == after.keys() and len(before) > 5
    # Of some parameters the library's own gradient is a small difference of large sums.
    roundings = 1e-6 * max(g.abs().max().item() for g in before.values())
    for name, g in before.items():
        close(after[name], g, more=roundings)


@pytest.mark.parametrize("family", [x for x in FAMILIES if x != "minimax"])
def test_packed_sequences(family, model):
    """Three sequences in a row are as each by itself; the library's own functions refuse them."""
    ids, ends = tokens(1, 21), [0, 4, 5, 21]
    lengths = [b - a for a, b in itertools.pairwise(ends)]
    packed = {
        "cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor(ends, dtype=torch.int32),
        "max_length_q": 16,
        "max_length_k": 16,
        "seq_idx": torch.cat([torch.full((1, n), i) for i, n in enumerate(lengths)], 1).int(),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "use_cache": False,
    }
    with torch.no_grad():
        apart = torch.cat([model(family)(x).logits for x in ids.split(lengths, 1)], 1)
        with pytest.raises(ValueError, match="can't keep packed sequences apart"):
            model(family)(ids, **packed)
        with patch_transformers():
            close(model(family)(ids, **packed).logits, apart)
            del packed["seq_idx"]
            close(model(family)(ids, **packed).logits, apart)


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
