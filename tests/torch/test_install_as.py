"""Stand-ins under the names of packages: signatures, what can be imported, and the way back."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from pathlib import Path

import pytest
import torch
from processes import output
from signatures import MAMBA, XLSTM

import linattn.torch
from linattn.torch import install_as

NAMES = ("mamba_ssm", "causal_conv1d")
MORE = ("flashrnn", "mlstm_kernels")


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    left = [x for x in sys.modules if x.split(".")[0] in NAMES]
    for x in left:
        del sys.modules[x]
    assert not left


def parameters(function):
    """The parameters of a function in the form of the table, without those of linattn's alone."""

    def shown(x):
        default = getattr(x.default, "__name__", None) or repr(x.default)
        return str(x.replace(annotation=x.empty, default=x.empty)) + (
            "" if x.default is x.empty else f"={default}"
        )

    found = inspect.signature(function).parameters.values()
    return ", ".join(shown(x) for x in found if x.name not in ("self", "cu_seq_lens_q"))


@pytest.mark.parametrize(
    ("module", "name"), [(m, n) for m, names in (MAMBA | XLSTM).items() for n in names]
)
def test_signatures(module, name):
    """The published ones; where others follow, as in mlstm_kernels, those tune kernels."""
    found = importlib.import_module(f"linattn.torch.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    own, published = parameters(found), (MAMBA | XLSTM)[module][name]
    assert own == published or (
        module in XLSTM and f"{own}, ".startswith(f"{published}, ".lstrip(", "))
    )


def test_all_modules_take_the_names():
    with install_as(*NAMES, *MORE, replace=True) as installed:
        assert installed.names == (*NAMES, *MORE) and "mamba_ssm, causal_conv1d" in repr(installed)
        for module, names in (MAMBA | XLSTM).items():
            found = importlib.import_module(module)
            assert found is importlib.import_module(f"linattn.torch.{module}")
            assert all(hasattr(found, name.split(".")[0]) for name in names)
        import causal_conv1d
        import mamba_ssm

        from linattn.torch.causal_conv1d import causal_conv1d_fn

        assert mamba_ssm.ops.triton.ssd_combined is sys.modules["mamba_ssm.ops.triton.ssd_combined"]
        assert causal_conv1d.causal_conv1d_fn is causal_conv1d_fn
        assert importlib.util.find_spec("mamba_ssm") is not None
        assert mamba_ssm.__version__.startswith("2.3.2")
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("mamba_ssm")
    with pytest.raises(ImportError):
        import mamba_ssm


def test_unknown_names_are_named():
    with install_as("mamba_ssm"):
        with pytest.raises(ImportError, match="Mamba2Simple"):
            from mamba_ssm import Mamba2Simple  # noqa: F401
        with pytest.raises(ImportError, match=r"mamba_ssm\.ops\.triton\.ssd_chunk_scan"):
            importlib.import_module("mamba_ssm.ops.triton.ssd_chunk_scan")
    with pytest.raises(ValueError, match="install_as: a name is 'flash_attn'"):
        install_as("mamba_ssm", "flash_attn")
    with pytest.raises(TypeError, match="no name is given"):
        install_as()


def package(folder, text, name="mamba_ssm"):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)
    (folder / name / "part.py").write_text("there = True\n")


def test_a_package_that_can_be_imported_stays(tmp_path, monkeypatch):
    package(tmp_path, "from . import part\n__version__ = 'real'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with install_as("mamba_ssm") as installed:
        import mamba_ssm

        assert installed.names == () and mamba_ssm.__version__ == "real"
    real = sys.modules["mamba_ssm.part"]
    with install_as("mamba_ssm", replace=True) as installed:
        assert installed.names == ("mamba_ssm",) and "mamba_ssm.part" not in sys.modules
        import mamba_ssm

        assert mamba_ssm is linattn.torch.mamba_ssm
    assert sys.modules["mamba_ssm.part"] is real and "mamba_ssm.ops" not in sys.modules
    assert sys.modules["mamba_ssm"].__version__ == "real"
    for name in ("mamba_ssm", "mamba_ssm.part"):
        del sys.modules[name]


@pytest.mark.parametrize(
    "failure", ["ImportError('selective_scan_cuda')", "RuntimeError('0 active')"]
)
def test_a_package_that_fails_to_import_is_replaced(tmp_path, monkeypatch, failure):
    package(tmp_path, f"from . import part\nraise {failure}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with install_as("mamba_ssm") as installed:
        assert installed.names == ("mamba_ssm",) and "mamba_ssm.part" not in sys.modules
        from mamba_ssm import Mamba

        assert Mamba is linattn.torch.mamba_ssm.Mamba


def test_calls_within_one_another():
    first = install_as("mamba_ssm")
    second = install_as(*NAMES)
    assert second.names == ("causal_conv1d",)
    first.undo()
    assert "mamba_ssm" not in sys.modules and "causal_conv1d" in sys.modules
    second.undo()
    second.undo()
    assert not {*NAMES} & sys.modules.keys() and second.names == ()


def test_what_others_have_put_there_since_stays():
    installed = install_as("causal_conv1d")
    other = sys.modules["causal_conv1d"] = type(sys)("causal_conv1d")
    installed.undo()
    assert sys.modules.pop("causal_conv1d") is other


def test_the_operator_keeps_its_name():
    assert inspect.isfunction(linattn.torch.causal_conv1d)
    importlib.import_module("linattn.torch.causal_conv1d.causal_conv1d_varlen")
    assert inspect.isfunction(linattn.torch.causal_conv1d)


def test_transformers_takes_the_functions(imported_again):
    """Its models compute with stand-ins that are there when a model is imported."""
    with install_as(*NAMES):
        module = importlib.import_module(imported_again)
        scan = inspect.getclosurevars(module.mamba_selective_scan).nonlocals["implementation"]
        from transformers.utils.import_utils import is_mamba_ssm_available

        if not torch.cuda.is_available():
            assert not is_mamba_ssm_available()
    assert scan is linattn.torch.mamba_ssm.selective_scan_fn


@pytest.fixture
def imported_again():
    """The name of a module of Transformers that a test imports anew, for itself alone."""
    package = importlib.import_module("transformers.models.mamba")
    before = importlib.import_module(f"{package.__name__}.modeling_mamba")
    del sys.modules[before.__name__]
    yield before.__name__
    sys.modules[before.__name__] = package.modeling_mamba = before


SCRIPT = """
import torch
from mamba_ssm import Mamba, Mamba3, MambaLMHeadModel
from mamba_ssm.modules.mamba3 import Mamba3 as Layer
from mamba_ssm.models.config_mamba import MambaConfig
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from flashrnn.flashrnn.flashrnn import flashrnn as again
from flashrnn import FlashRNNConfig, flashrnn
from mlstm_kernels.torch.backend_module import mLSTMBackend, mLSTMBackendConfig

ssm_cfg = {"layer": "Mamba2", "headdim": 8}
config = MambaConfig(d_model=16, n_layer=2, vocab_size=30, ssm_cfg=ssm_cfg)
model = MambaLMHeadModel(config, device="cpu", dtype=torch.bfloat16)
tokens = model.generate(torch.tensor([[1, 2, 3]]), 9, cg=True, temperature=0.8, top_k=3, top_p=0.9)
config = FlashRNNConfig(num_heads=2, head_dim=8, function="slstm", backend="vanilla")
states, _ = flashrnn(torch.randn(3, 7, 4, 2, 8), torch.randn(2, 8, 4, 8).permute(2, 0, 3, 1),
                     torch.randn(4, 2, 8), config=config)
q = states[0].transpose(1, 2)
h, _ = mLSTMBackend(mLSTMBackendConfig(mode="inference"))(q, q, q, q[..., 0], q[..., 1])
print(*tokens.shape, Layer is Mamba3, flashrnn is again, *h.shape)
"""


@pytest.mark.slow
def test_a_script_runs_unchanged(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    start = (
        "import linattn.torch, runpy\n"
        f"linattn.torch.install_as(*{NAMES + MORE}, replace=True)\n"
        f"runpy.run_path({str(tmp_path / 'script.py')!r}, run_name='__main__')"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    printed = output("-c", start, timeout=120, PYTHONPATH=path)
    assert printed == "1 9 True True 3 2 7 8\n"
