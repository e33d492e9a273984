"""The stubs that a build writes say what there is at run time."""

import ast
import importlib
import inspect

import pytest

import linattn
from linattn._bridges import generic_stubs, rows, stubs

NEEDED = {"mpi": "mpi4py", "distributed": "torch"}


def test_a_build_has_written_them():
    for name, text in stubs.stubs().items():
        assert (generic_stubs.FOLDER / name).read_text() == text, (
            f"{name}: python -m linattn._bridges.stubs"
        )


@pytest.mark.parametrize("library", rows.BRIDGES)
def test_signatures(library):
    """Every public function of a bridge is in its stub, with the parameters that it takes."""
    pytest.importorskip(NEEDED.get(library, library))
    bridge = rows.BRIDGES[library]
    module = importlib.import_module(bridge.module)
    stub = ast.parse(stubs.stubs()[f"_signatures/{library}.pyi"])
    stubbed = {x.name: parameters(x) for x in stub.body if isinstance(x, ast.FunctionDef)}
    functions = {x: getattr(module, x) for x in module.__all__}
    functions = {x: f for x, f in functions.items() if inspect.isfunction(f)}
    assert stubbed == {x: [*inspect.signature(f).parameters] for x, f in functions.items()}


def test_signatures_of_arrays():
    """They are those of the functions, which have no overloads themselves."""
    stub = ast.parse(stubs.stubs()["_signatures/arrays.pyi"])
    stubbed = {x.name: parameters(x) for x in stub.body if isinstance(x, ast.FunctionDef)}
    functions = {x: getattr(linattn, x) for x in stubbed}
    assert stubbed == {x: [*inspect.signature(f).parameters] for x, f in functions.items()}
    modules = ((x, getattr(getattr(linattn, x), "__module__", "")) for x in linattn.__all__)
    public = {x for x, module in modules if module.startswith("linattn.operators")}
    assert public - {*stubbed} == {"blocks", "stream"}


def parameters(function):
    args = function.args
    star = [args.vararg] if args.vararg else []
    return [x.arg for x in (*args.args, *star, *args.kwonlyargs)]


def test_generic_stubs_name_the_functions():
    """Where the built module cannot be run they have no types."""
    generic = generic_stubs.generic_stubs()
    assert generic.keys() == stubs.stubs().keys()
    for text in generic.values():
        ast.parse(text)
    assert "\ncausal: Any\n" in generic["_signatures/torch.pyi"]
    assert set(generic_stubs.public("__init__.py")) == set(linattn.__all__)


USE = """
import jax.numpy as jnp
import linattn, linattn.dask, linattn.jax, linattn.torch, linattn.torch.distributed
import jax, numpy as np, torch
from typing import assert_type
from numpy.typing import NDArray
from linattn.dask import causal, gated
x = np.ones((3, 2))
o, state = causal(x, x, x, return_state=True)
assert_type(state, linattn.State)
gated(x, x, x)  # type: ignore[call-overload]
causal(x, x, x, out=x)  # type: ignore[call-overload]
assert_type(linattn.ufuncs.causal_elu, np.ufunc)
assert_type(linattn.jax.causal(jnp.ones(3), x, x), jax.Array)
t = torch.ones(3, 2)
assert_type(linattn.torch.causal(t, t, t, return_state=True), tuple[torch.Tensor, linattn.State])
assert_type(linattn.torch.distributed.causal(t, t, t), torch.Tensor)
linattn.ufuncs.no_such  # type: ignore[attr-defined]
linattn.causal(x, x, x, feature_map="no such")  # type: ignore[call-overload]
"""


@pytest.mark.slow
def test_mypy_reads_them(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    for library in ("dask.array", "jax", "torch"):
        pytest.importorskip(library)
    file = tmp_path / "use.py"
    file.write_text(USE)
    monkeypatch.chdir(generic_stubs.FOLDER.parent)  # of its configuration, and its cache
    text, errors, status = api.run([str(file)])
    assert (status, errors) == (0, ""), text
