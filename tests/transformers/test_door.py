"""Models of Transformers with linattn's stand-ins, in interpreters that import them first.

The library asks the packages fla, mamba_ssm and causal_conv1d for their functions when it imports
a model.  What it computes without them is computed here.
"""

from pathlib import Path

import pytest
import torch
import transformers
import transformers_door as door
from processes import python
from transformers_cases import FAMILIES, close, same_gradients
from transformers_models import build, module

PROGRAM = Path(door.__file__)
#: Its model trains on another form of the layer where mamba_ssm is there, with other results.
TRAINS_OTHERWISE = ("falcon_mamba",)
#: Parts of these that do not ask are not told of sequences: patch_transformers tells them.
MIXING = (*door.SCAN_MIXES, "granitemoehybrid", "mamba2")


def run(*arguments):
    return python(*arguments, cwd=PROGRAM.parent)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))  # an interpreter takes its time to start
def test_models(part, tmp_path):
    """Logits, generation, gradients and packed sequences, without Triton."""
    families = [x for x in FAMILIES[part::4] if door.implementations(x)]
    program = run(str(PROGRAM), str(tmp_path), *families)
    assert program.returncode == 0, program.stderr
    for family in families:
        same_results(family, torch.load(tmp_path / family), door.results(family))


def same_results(family, found, expected):
    called = found["implementations"]
    assert called.keys() == door.implementations(family).keys()
    assert all(x.startswith("linattn.torch.") for x in called.values()), called
    assert torch.equal(found["text"], expected["text"])
    for name in ("logits", "padded", "steps"):
        close(found[name], expected[name])
    if family not in TRAINS_OTHERWISE:
        same_gradients(found["gradients"], expected["gradients"])
    if family not in MIXING:
        model = build(family, **door.ALL_LINEAR.get(family, {}))
        ids, lengths, *_ = door.packed_row()
        with torch.no_grad():
            apart = torch.cat([model(x, use_cache=False)[0] for x in ids.split(lengths, 1)], 1)
        assert len(found["packed"]) == 3
        for logits in found["packed"].values():
            close(logits, apart)


@pytest.mark.slow  # imports them all
def test_every_family_that_asks_is_here():
    """The library's other models that ask are those of LFM2 and Inkling, for its convolution."""
    package = Path(transformers.__file__).parent / "models"
    ask = "use_kernel_func_from_hub_with_fallback"
    asking = {x.parent.name for x in package.glob("*/modeling_*.py") if ask in x.read_text()}
    known = {x for x in FAMILIES if door.implementations(x)}
    convolving = {"inkling", "inkling2", "lfm2_moe"}
    if not transformers.__version__.startswith("5.23."):
        convolving |= {"inkling2_loop", "lfm3"}
    assert asking == known | convolving
    for family in asking - known:
        names = {*door.implementations(family)}
        assert names == {"causal_conv1d_fn", "causal_conv1d_update"}


WITH_FLA = """
import sys, contextlib, torch
import transformers_models
from transformers_models import build, module
transformers_models.fla_hidden = contextlib.nullcontext
import linattn.torch
print(linattn.torch.install_as("fla", replace=len(sys.argv) > 1).names)
model = build("qwen3_next")
print(model(torch.ones(1, 5, dtype=torch.long)).logits.isfinite().all().item())
"""


@pytest.mark.slow
def test_where_fla_is_installed():
    """Its functions need a GPU; with ``replace`` they are linattn's."""
    pytest.importorskip("triton", reason="fla imports triton")
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    replaced = run("-c", WITH_FLA, "replace")
    assert replaced.stdout.split("\n")[:2] == ["('fla',)", "True"], replaced.stderr
    if not torch.cuda.is_available():
        left = run("-c", WITH_FLA)
        assert left.returncode == 1 and left.stdout == "()\n"
        assert "active driver" in left.stderr


def test_what_the_library_says(monkeypatch):
    """Its checks find the stand-in, but for a GPU, which they ask for."""
    from transformers.utils import import_utils

    from linattn.torch import install_as

    with install_as("fla", replace=True):
        there, version = import_utils._is_package_available("fla", return_version=True)
        check = import_utils.is_flash_linear_attention_available.__wrapped__
        assert there and version
        assert torch.cuda.is_available() or not check()
        monkeypatch.setattr(import_utils, "is_torch_cuda_available", lambda: True)
        assert check()


def test_models_that_are_imported_are_left(monkeypatch):
    """A stand-in that comes later changes nothing: patch_transformers does."""
    from linattn.torch import install_as

    before = door.implementations("qwen3_next")
    with install_as(*door.PACKAGES, replace=True):
        assert door.implementations("qwen3_next") == before
        assert not any(x.__module__.startswith("linattn") for x in before.values())
        assert module("qwen3_next")
