"""Layers of Transformers that decode by one fused step, and those that another program changed."""

import functools
import warnings

import pytest
import torch
from slow import grid
from transformers_cases import cache_of, close
from transformers_models import VOCABULARY, build, module

from linattn.torch import patch_transformers, patched
from linattn.torch.transformers import _tokens

#: Families, and the name of their norm.
FAMILIES = {
    "qwen3_next": "norm", "qwen3_5": "norm", "kimi_linear": "o_norm", "mamba2": "norm",
    "granitemoehybrid": "norm",
}  # fmt: skip
PARTS = [*FAMILIES.items(), ("kimi_linear", "forget_gate")]
parts = pytest.mark.parametrize(("family", "part"), PARTS)


def layer_of(model, part):
    """The first layer that has this part and a convolution."""
    return next(x for x in model.modules() if hasattr(x, part) and hasattr(x, "conv1d"))


@pytest.fixture
def steps(monkeypatch):
    """How many fused steps there were, as the length of a list."""
    calls = []
    for name in ("fused_gated_delta_step", "fused_gated_step"):
        step = getattr(_tokens, name)

        def counted(*args, step=step, **options):
            calls.append(1)
            return step(*args, **options)

        monkeypatch.setattr(_tokens, name, counted)
    return calls


def decoded(model):
    """The logits of two tokens after a prompt."""
    ids = torch.randint(1, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out, found = model(ids[:, :4], use_cache=True), []
        for i in (4, 5):
            name = cache_of(out)
            out = model(ids[:, i : i + 1], use_cache=True, **{name: out[name]})
            found.append(out.logits)
    return torch.stack(found)


def change_class(model, part, changed, monkeypatch):
    kind = type(getattr(layer_of(model, part), part))
    monkeypatch.setattr(kind, "forward", changed(kind.forward))


def change_instances(model, part, changed, _):
    for owner in model.modules():
        if hasattr(owner, part) and hasattr(owner, "conv1d"):
            inner = getattr(owner, part)
            inner.forward = functools.partial(changed(type(inner).forward), inner)


def change_to_a_subclass(model, part, changed, _):
    for owner in model.modules():
        if hasattr(owner, part) and hasattr(owner, "conv1d"):
            kind = type(getattr(owner, part))
            forward = {"forward": changed(kind.forward)}
            getattr(owner, part).__class__ = type(f"Other{kind.__name__}", (kind,), forward)


def hook(model, part, *_):
    for owner in model.modules():
        if hasattr(owner, part) and hasattr(owner, "conv1d"):
            getattr(owner, part).register_forward_hook(lambda module, given, out: out * 2)


def wrapped(forward):
    """As decorators wrap a function: `inspect` takes its source for that of what it wraps."""

    @functools.wraps(forward)
    def run(*args, **kwargs):
        return forward(*args, **kwargs) * 2

    return run


def written(forward):
    def run(*args, **kwargs):
        return forward(*args, **kwargs) * 2

    return run


@grid(
    lambda change, changed: (change, changed) in ((change_class, wrapped), (hook, written)),
    change=[change_class, change_instances, change_to_a_subclass, hook],
    changed=[wrapped, written],
)
@parts
def test_parts_that_another_program_changed(family, part, change, changed, monkeypatch, steps):
    """Are called, where the fused step would compute the library's."""
    model = build(family)
    plain = decoded(model)
    change(model, part, changed, monkeypatch)
    expected = decoded(model)
    assert (expected - plain).abs().max() > 0.01 * plain.abs().max()
    with patch_transformers():
        close(decoded(model), expected)
    assert not steps


def test_hooks_of_all_modules(steps):
    model, seen = build("mamba2"), []
    kind = type(layer_of(model, "norm").norm)
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, out: seen.append(1) if type(module) is kind else None
    )
    try:
        with patch_transformers():
            decoded(model)
    finally:
        handle.remove()
    assert not steps and len(seen) == 3 * model.config.num_hidden_layers


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "kimi_linear"])
def test_the_activation_of_the_gate(family, steps):
    """That of the norm; one that the fused step lacks is the library's."""
    for activation, fused in (("silu", True), ("sigmoid", True), ("tanh", False)):
        model = build(family)
        norm = getattr(layer_of(model, FAMILIES[family]), FAMILIES[family])
        norm.activation = activation
        expected = decoded(model)
        steps.clear()
        with patch_transformers():
            close(decoded(model), expected)
        assert bool(steps) is fused


def test_a_layer_that_another_program_wrapped(monkeypatch):
    """Is left alone, though `inspect` finds the library's source behind its forward."""
    mixer = module("mamba2").Mamba2Mixer
    monkeypatch.setattr(mixer, "forward", wrapped(mixer.forward))
    ours = mixer.forward
    with pytest.warns(UserWarning, match=r"Mamba2Mixer\.forward has been changed"):
        patch = patch_transformers()
    with patch:
        assert mixer.forward is ours


@pytest.mark.parametrize("version", ["5.22.1", "4.57.3", "of its own", None])
def test_older_versions(version, monkeypatch):
    monkeypatch.setattr("transformers.__version__", version, raising=True)
    expected = r"transformers has version .*; expected 5\.23 or later: pip install"
    with pytest.raises(ImportError, match=expected):
        patch_transformers()
    assert patched() == []


@pytest.mark.parametrize("version", ["5.23.0", "5.23.0.dev0", "5.30.1", "6.0.0"])
def test_newer_versions(version, monkeypatch):
    monkeypatch.setattr("transformers.__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch_transformers().undo()


def test_the_oldest_version_is_that_of_the_package():
    from importlib.metadata import requires

    from linattn.torch.transformers import _OLDEST

    promised = [x for x in requires("linattn") if x.startswith("transformers")]
    assert promised
    oldest = ".".join(map(str, _OLDEST))
    tested = [x.replace(" ", "") for x in promised if "test" in x]
    assert [x.partition(";")[0] for x in tested] == [f"transformers=={oldest}.*"]
    assert all(f">={oldest};" in x.replace(" ", "") for x in promised if "test" not in x)
