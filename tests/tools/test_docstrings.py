"""Every public function says what it takes, and its examples run."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import linattn
from linattn._cli import selftest
from linattn._docs import templates

SECTIONS = ("Parameters", "Returns", "Raises", "Notes", "References", "Examples")
OPERATORS = tuple(selftest.OPERATORS)
MODULES = [
    "linattn",
    *(module.name for module in pkgutil.walk_packages(linattn.__path__, "linattn.")),
]
MODULES.remove("linattn.__main__")
OPTIONAL = ("linattn.torch", "linattn.jax", "linattn.dask")  # need what they bridge to


@pytest.mark.parametrize("package", ("linattn", *OPTIONAL))
def test_examples(package):
    if package in OPTIONAL:
        pytest.importorskip(package.split(".")[1])
    failed = []
    for name in MODULES:
        if name.startswith(package if package in OPTIONAL else OPTIONAL) == (package in OPTIONAL):
            module = importlib.import_module(name)
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            failed += [name] * doctest.testmod(module, optionflags=flags).failed
    assert failed == []


def assert_says(f, *sections):
    """The docstring has these sections, and the names of what the function takes, in order."""
    text = inspect.getdoc(f)
    for section in sections:
        assert f"{section}\n{'-' * len(section)}" in text, (f, section)
    if "Parameters" in sections:
        assert documented(f) == signature(f), f


@pytest.mark.parametrize("name", OPERATORS)
def test_sections(name):
    assert_says(getattr(linattn, name), *SECTIONS)


@pytest.mark.parametrize("name", [x for x in OPERATORS if not x.endswith("_backward")])
def test_sections_of_functions_of_tensors(name):
    f = getattr(pytest.importorskip("linattn.torch"), name)
    assert_says(f, *SECTIONS)
    text = inspect.getdoc(f)
    assert "array" not in text and ">>> import torch, linattn.torch" in text


BRIDGES = {
    "linattn.jax": (),
    "linattn.dask": (),
    "linattn.mpi": (),
    "linattn.torch": ("initial_state",),  # the others above
    "linattn.torch.distributed": (),
    "linattn.torch.fla": (),
    "linattn.torch.feature_maps": (),
}


@pytest.mark.parametrize("module", BRIDGES)
def test_sections_of_bridges(module):
    """Each says what it takes itself, and of ``out`` only where it is taken."""
    needed = module.split(".")[1]
    pytest.importorskip({"mpi": "mpi4py"}.get(needed, needed))
    package = importlib.import_module(module)
    functions = [getattr(package, x) for x in BRIDGES[module] or package.__all__]
    functions = [f for f in functions if inspect.isfunction(f)]
    assert functions
    for f in functions:
        takes = ("Parameters", "Raises") if signature(f) else ()  # L2Norm()
        assert_says(f, "Returns", "Examples", *takes)
        assert "``out``" not in inspect.getdoc(f) or "out" in signature(f), f


STAND_INS = (
    "causal_conv1d.causal_conv1d_interface", "causal_conv1d.causal_conv1d_varlen",
    "mamba_ssm.ops.selective_scan_interface", "mamba_ssm.ops.triton.selective_state_update",
    "mamba_ssm.ops.triton.ssd_combined", "mamba_ssm.ops.triton.layernorm_gated",
    "mamba_ssm.ops.triton.layer_norm", "mamba_ssm.modules.mamba_simple",
    "mamba_ssm.ops.triton.mamba3.mamba3_siso_combined",
    "mamba_ssm.ops.triton.mamba3.mamba3_siso_step",
    "mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step",
    "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo", "mamba_ssm.ops.cute.mamba3.mamba3_step_fn",
    "mamba_ssm.modules.mamba2", "mamba_ssm.modules.mamba3", "mamba_ssm.modules.block",
    "mamba_ssm.modules.mlp", "mamba_ssm.models.config_mamba", "mamba_ssm.models.mixer_seq_simple",
    "flashrnn.flashrnn.flashrnn", "mlstm_kernels.torch.backend_module",
    "mlstm_kernels.torch.kernel_wrappers", "mlstm_kernels.torch.chunkwise.native",
    "mlstm_kernels.torch.chunkwise.triton_xl_chunk_siging", "mlstm_kernels.torch.parallel.native",
    "mlstm_kernels.torch.parallel.native_siging", "mlstm_kernels.torch.recurrent.native_step",
)  # fmt: skip


@pytest.mark.parametrize("name", STAND_INS)
def test_sections_of_stand_ins(name):
    """Functions say what they take, return and raise, layers what they take."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    module = importlib.import_module(f"linattn.torch.{name}")
    for f in (getattr(module, x) for x in module.__all__):
        is_operator = inspect.isfunction(f) and name.rpartition(".")[2] != "mixer_seq_simple"
        assert_says(f, *(("Returns", "Raises", "Examples") if is_operator else ()))
        assert documented(f) == signature(f), f


def test_sections_of_classes_and_helpers():
    """An attention layer is called as its base class says."""
    for f in (linattn.stream, linattn.initial_state):
        assert_says(f, *SECTIONS[:1], *SECTIONS[2:])
    assert "Examples\n-----" in inspect.getdoc(linattn.show_config)
    maps = pytest.importorskip("linattn.torch.feature_maps")
    for f in (getattr(maps, name) for name in maps.__all__):
        if inspect.isclass(f) and f is not maps.TensorMap:
            assert_says(f, "Parameters", "Raises", "Examples")
    nn = importlib.import_module("linattn.torch.nn")
    assert "Returns\n" in inspect.getdoc(nn.Attention.forward)
    for layer in (getattr(nn, name) for name in nn.__all__):
        assert inspect.getdoc(layer), layer
        if not issubclass(layer, tuple) and layer is not nn.Attention:
            assert_says(layer, "Parameters", "Raises", "References", "Examples")


def test_errors_named_are_of_what_is_taken():
    """No docstring speaks of a map where there is none, nor of an output that is not taken."""
    for name in OPERATORS:
        f = getattr(linattn, name)
        raises = inspect.getdoc(f).partition("Raises\n------\n")[2].partition("\n\n")[0]
        named = set(re.findall(r"If ``(\w+)``", raises))
        assert named <= set(signature(f)), name
        assert " map" not in raises or "feature_map" in signature(f), name


def test_paragraphs_where_python_takes_the_margin_away():
    """As Python 3.13 does."""

    def f(q, *, feature_map="relu"):
        """One.

        Raises
        ------
        $raises
        """

    text = inspect.cleandoc(f.__doc__)
    for margin in ("    ", ""):
        f.__doc__ = text.replace("\n", f"\n{margin}")
        found = inspect.getdoc(templates.filled(f))
        assert "\nTypeError\n    If an operand" in found and "$" not in found
        assert "``feature_map``" in found and "``scale``" not in found


def signature(f):
    """The names of what a function takes."""
    return list(inspect.signature(f).parameters)


def documented(f):
    """The names that stand before a colon in the section Parameters, in their order."""
    _, _, rest = inspect.getdoc(f).partition("Parameters\n----------\n")
    section = re.split(r"\n\n\w+\n-+\n", rest)[0]
    return [
        name.strip().lstrip("*")
        for line in section.splitlines()
        if line and not line.startswith(" ")
        for name in line.partition(" : ")[0].split(",")
    ]


def test_public_names():
    assert {*OPERATORS, "ufuncs", "show_config", "get_num_threads"} <= set(linattn.__all__)
    for name in linattn.__all__:
        assert getattr(linattn, name).__doc__, name


def test_bridges_do_not_describe_what_they_refuse():
    def describes(module):
        docs = {name: getattr(module, name).__doc__ or "" for name in module.__all__}
        return {name for name, text in docs.items() if "a\n    `linattn.ExactState`" in text}

    torch = pytest.importorskip("linattn.torch", reason="PyTorch is not installed")
    jax = pytest.importorskip("linattn.jax", reason="JAX is not installed")
    dask = pytest.importorskip("linattn.dask", reason="dask is not installed")
    assert {"causal", "gated"} <= describes(linattn) & describes(torch) & describes(jax)
    assert not describes(dask)
