"""What `patch_transformers` replaces, when, and how it is put back."""

import importlib
import importlib.util
import inspect
import re
import sys
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from transformers_cases import FAMILIES, close, functions, normal
from transformers_models import fla_hidden, module

import linattn.torch
from linattn.torch import patch_transformers, patched
from linattn.torch.transformers import (
    DROP_PACKING,
    MASK_PACKED,
    MIX_PACKED,
    SCAN_PACKED,
    STAND_INS,
    _replacement,
)
from linattn.torch.transformers._replaced import StandIn

WRAPPED = (*DROP_PACKING, *MASK_PACKED, *MIX_PACKED, *SCAN_PACKED)
REPLACED = [*STAND_INS, *(f"{name}.forward" for name in WRAPPED)]


def everything():
    """Every module and function that has a stand-in, by a look at the library's sources."""
    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        text = file.read_text()
        for name in REPLACED:
            head, _, method = name.partition(".")
            kind = " *class" if method else "def"  # a class may be within an if
            if re.search(rf"^{kind} {head}\(", text, re.M):
                yield f"transformers.models.{file.parent.name}.{file.stem}.{name}"


def module_of(name):
    """The module ``transformers.models.a.modeling_a`` of a function or method in it."""
    return ".".join(name.split(".")[:4])


@pytest.mark.slow  # imports 60 models
def test_everything_is_patched_and_given_back():
    names = list(everything())
    assert len(names) > 60
    with fla_hidden():
        modules = {importlib.import_module(module_of(name)) for name in names}
    before = {m: dict(vars(m)) for m in modules}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch = patch_transformers()
    assert patched() == sorted(set(names))
    assert repr(patch) == f"<{len(names)} functions of transformers run on linattn>"
    for m in modules:
        assert {name for name, x in vars(m).items() if x is not before[m][name]} == {
            name for name in STAND_INS if name in before[m]
        }
    patch.undo()
    patch.undo()
    assert patched() == []
    for m in modules:
        assert all(x is before[m][name] for name, x in vars(m).items())


def test_contexts():
    """An inner one leaves what was patched before it; undo() of any call gives all back."""
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    with pytest.raises(KeyError), patch_transformers():
        assert m.torch_chunk_gated_delta_rule is not own
        raise KeyError
    assert m.torch_chunk_gated_delta_rule is own
    patch_transformers()
    ours = m.torch_chunk_gated_delta_rule
    again = patch_transformers()
    with patch_transformers():
        assert m.torch_chunk_gated_delta_rule is ours
    assert m.torch_chunk_gated_delta_rule is ours
    again.undo()
    again.undo()
    assert m.torch_chunk_gated_delta_rule is own


def test_threads():
    """The first of two threads to leave its context leaves the other's functions patched."""
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    entered, left = threading.Event(), threading.Event()

    def other():
        with patch_transformers():
            entered.set()
            assert left.wait(60)
            return m.torch_chunk_gated_delta_rule is not own

    with ThreadPoolExecutor(1) as pool:
        with patch_transformers():
            result = pool.submit(other)
            assert entered.wait(60)
        left.set()
        assert result.result()
    assert m.torch_chunk_gated_delta_rule is own
    with patch_transformers() as patch, patch:
        patch_transformers().undo()
        assert m.torch_chunk_gated_delta_rule is not own
    assert m.torch_chunk_gated_delta_rule is own


def test_what_others_put_there_stays(capfd):
    """And nothing is printed."""
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    try:
        with patch_transformers():
            m.torch_chunk_gated_delta_rule = test_contexts
            assert f"{m.__name__}.torch_chunk_gated_delta_rule" not in patched()
        assert m.torch_chunk_gated_delta_rule is test_contexts
    finally:
        m.torch_chunk_gated_delta_rule = own
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in STAND_INS if "." not in name])
def test_signatures(name):
    """All arguments of the library's function are named, with its defaults."""
    theirs, ours = (
        {
            x.name: (x.kind, x.default)
            for x in inspect.signature(getattr(owner, name)).parameters.values()
        }
        for owner in functions(next(x for x in FAMILIES if hasattr(module(x), name)))
    )
    assert {x: y for x, y in ours.items() if y[0] is not inspect.Parameter.KEYWORD_ONLY} == theirs


def test_another_signature_is_left_alone(monkeypatch):
    fake = types.ModuleType("transformers.models.fake.modeling_fake")
    good = module("qwen3_next")
    fake.causal_conv1d_fn = good.causal_conv1d_fn

    def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation="silu"):
        pass

    def torch_chunk_gated_delta_rule(query, key, value, g, beta, *, scale=None):
        pass

    class MiniMaxLightningAttention:
        forward = module("minimax").MiniMaxModel.forward

    for thing in (causal_conv1d_update, torch_chunk_gated_delta_rule, MiniMaxLightningAttention):
        setattr(fake, thing.__name__, thing)
    fake.mamba2_chunk_scan = None
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    before = dict(vars(fake))
    with pytest.warns(UserWarning) as warned, patch_transformers():
        assert vars(fake)["causal_conv1d_fn"] is not before["causal_conv1d_fn"]
        for name in before.keys() - {"causal_conv1d_fn"}:
            assert vars(fake)[name] is before[name]
    with warnings.catch_warnings(), pytest.raises(UserWarning):
        warnings.simplefilter("error")
        patch_transformers()
    assert patched() == []
    assert {w.filename for w in warned} == {__file__}
    texts = [str(w.message) for w in warned]
    assert len(texts) == 3
    for name in (
        "causal_conv1d_update", "torch_chunk_gated_delta_rule", "MiniMaxLightningAttention.forward",
    ):  # fmt: skip
        (text,) = (x for x in texts if f"{fake.__name__}.{name}" in x)
        assert f"transformers {transformers.__version__}" in text and "left as it is" in text


def test_functions_as_modules(monkeypatch):
    """As they are where the package kernels is installed."""
    fake = types.ModuleType("transformers.models.fake.modeling_fake")
    function = module("lfm2").causal_conv1d_fn

    class Function(torch.nn.Module):
        def forward(self, hidden_states, weight, bias=None, activation=None, **kwargs):
            return function(hidden_states, weight, bias, activation, **kwargs)

    fake.causal_conv1d_fn = before = Function()
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    with patch_transformers():
        assert f"{fake.__name__}.causal_conv1d_fn" in patched()
        x, weight = normal(1, 5, 3), normal(5, 4)
        for activation in ("silu", "gelu"):  # linattn's, and the library's
            close(
                fake.causal_conv1d_fn(x, weight, None, activation),
                before(x, weight, None, activation),
            )
    assert fake.causal_conv1d_fn is before


def test_another_body_of_a_method_is_left_alone(monkeypatch):
    attention = module("minimax").MiniMaxLightningAttention

    def forward(
        self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs
    ):
        pass

    monkeypatch.setattr(attention, "forward", forward)
    with pytest.warns(UserWarning, match="has been changed"), patch_transformers():
        assert attention.forward is forward


LATER = """
import sys
import linattn.torch
patch = linattn.torch.patch_transformers()
assert linattn.torch.patched() == []
assert not [x for x in sys.modules if x.startswith("transformers.models.")]
from transformers.models.lfm2 import modeling_lfm2 as m
names = ["Lfm2Attention.forward", "causal_conv1d_fn", "causal_conv1d_update"]
assert linattn.torch.patched() == [f"{m.__name__}.{x}" for x in names]
assert type(m.__loader__).__name__ == type(m.__spec__.loader).__name__ == "SourceFileLoader"
ours = m.causal_conv1d_fn
patch.undo()
assert linattn.torch.patched() == [] and m.causal_conv1d_fn is not ours
from transformers import Mamba2ForCausalLM
assert linattn.torch.patched() == []
patch = linattn.torch.patch_transformers()
assert len(linattn.torch.patched()) == 10
import importlib
importlib.reload(m)
assert len({*linattn.torch.patched()}) == 10 and m.causal_conv1d_fn is not ours
patch.undo()
assert linattn.torch.patched() == []
"""


@pytest.mark.slow
def test_modules_imported_later(interpreter):
    """No model is imported for it, and nothing is printed."""
    out, err = interpreter(LATER, PYTHONPATH=str(Path(linattn.__file__).parents[1]))
    assert out == "" and "linattn" not in err


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[transformers\]'"):
        patch_transformers()


FLA = """
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers_models import MODELS
import linattn.torch
model = Qwen3NextForCausalLM(Qwen3NextConfig(**MODELS["qwen3_next"][2])).eval()
with linattn.torch.patch_transformers(), torch.no_grad():
    assert model(torch.arange(20)[None]).logits.isfinite().all()
"""


@pytest.mark.slow
def test_beside_fla(interpreter):
    """Where fla is installed, models call its GPU kernels, which fail on CPUs unless patched."""
    pytest.importorskip("fla")
    interpreter(FLA)


@pytest.mark.parametrize("name", ["cache_params", "past_key_values", "cache"])
def test_a_cache_by_its_name(name):
    """Other names of it are keywords that the library hands on."""
    others = {"cache_params", "past_key_values"} - {name}
    namespace = {}
    exec(f"def original(x, {name}=None, **kwargs): return 'original'", namespace)

    def ours(x, cache=None, **kwargs):
        return cache

    run = _replacement(namespace["original"], StandIn(ours))
    assert run(0, **{name: "ours"}) == "ours"
    for other in others:
        assert run(0, **{name: "ours", other: None}) == "ours"
        assert run(0, **{other: "not ours"}) == "original"
