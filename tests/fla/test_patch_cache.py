"""States in fla's caches: written in place, unless somebody else has them."""

import copy

import pytest
import torch
from fla_models import build, tokens

from linattn.torch.fla import _lent

pytestmark = pytest.mark.usefixtures("fla_patched")
FAMILIES = ["Comba", "DeltaNet", "GLA", "GatedDeltaNet", "HGRN2", "KDA", "LightNet", "RWKV6",
            "RWKV7", "RetNet"]  # fmt: skip
IDS = tokens(2, 24)


@pytest.fixture
def model():
    return build("GatedDeltaNet").eval()


def prompt(model, n=4):
    """The cache after a prompt and a token, whose states then are the steps' own."""
    with torch.no_grad():
        cache = model(IDS[:, : n - 1], use_cache=True).past_key_values
    step(model, cache, n - 1)
    return cache


def step(model, cache, i):
    with torch.no_grad():
        return model(IDS[:, i : i + 1], past_key_values=cache, use_cache=True).logits


def states(cache):
    return [layer["recurrent_state"] for layer in cache]


@pytest.mark.skipif(not _lent.EXACT, reason="references are not counted exactly")
@pytest.mark.parametrize("name", FAMILIES)
def test_no_state_is_allocated_for_a_token(name):
    model = build(name).eval()
    cache = prompt(model)
    first = [id(x) for x in states(cache)]
    for i in range(4, 14):
        step(model, cache, i)
        assert [id(x) for x in states(cache)] == first


def _tensor(cache):
    return cache[0]["recurrent_state"]


@pytest.mark.parametrize(
    "keep",
    [_tensor, lambda cache: _tensor(cache)[0], lambda cache: _tensor(cache).detach(),
     lambda cache: _tensor(cache).numpy(), lambda cache: _tensor(cache).untyped_storage(),
     lambda cache: torch.utils.dlpack.to_dlpack(_tensor(cache)),
     lambda cache: [dict(x) for x in cache],
     lambda cache: type(cache).from_legacy_cache(cache.to_legacy_cache(), 4)],
    ids=["tensor", "row", "alias", "array", "storage", "capsule", "dictionaries", "legacy cache"]
)  # fmt: skip
def test_what_somebody_keeps_stays(model, keep):
    cache = prompt(model)
    before = _tensor(cache).clone()
    address = _tensor(cache).data_ptr()
    kept = keep(cache)
    step(model, cache, 4)
    assert _tensor(cache).data_ptr() != address
    assert not torch.equal(_tensor(cache), before)
    if isinstance(kept, type(cache)):
        assert torch.equal(_tensor(kept), before)
    elif torch.is_tensor(kept):
        assert torch.equal(kept, before if kept.ndim == before.ndim else before[0])


def test_two_caches_of_one_prompt():
    """Each goes its own way, as they would without patches (fla itself writes convolutions')."""
    model = build("GLA").eval()
    cache = prompt(model)
    other = type(cache).from_legacy_cache(cache.to_legacy_cache(), 4)
    expected = step(model, copy.deepcopy(cache), 5)
    for i in range(4, 8):
        step(model, cache, i)
    assert torch.equal(step(model, other, 5), expected)


def test_copies_and_reordered_caches(model):
    cache = prompt(model)
    copied, swapped = copy.deepcopy(cache), copy.deepcopy(cache)
    swapped.reorder_cache(torch.tensor([1, 0]))
    first = step(model, cache, 4)
    assert torch.equal(step(model, copied, 4), first)
    assert not torch.equal(step(model, swapped, 4), first)
    swapped.reorder_cache(torch.tensor([1, 0]))
    for x, y in zip(states(copied), states(cache), strict=True):
        assert torch.equal(x, y)


def test_a_call_that_keeps_no_state(model):
    cache = prompt(model)
    layer = model.model.layers[0].attn
    x, before = torch.randn(2, 1, 32), _tensor(cache).clone()
    with torch.no_grad():
        layer(x, past_key_values=cache, use_cache=False)
    assert torch.equal(_tensor(cache), before)


def test_gradients_leave_states(model):
    cache = prompt(model)
    address = _tensor(cache).data_ptr()
    out = model(IDS[:, 4:5], past_key_values=cache, use_cache=True).logits
    assert _tensor(cache).data_ptr() != address
    out.sum().backward()


def test_a_state_that_a_caller_passes_stays():
    """Functions of fla return new states, whether they are called through fla or not."""
    from fla.ops.gla import fused_recurrent_gla

    q, k, v, g = torch.randn(4, 1, 1, 2, 8)
    start = torch.randn(1, 2, 8, 8)
    before = start.clone()
    with torch.no_grad():
        _, end = fused_recurrent_gla(q, k, v, -g.abs(), initial_state=start,
                                     output_final_state=True)  # fmt: skip
    assert end is not start and torch.equal(start, before)
