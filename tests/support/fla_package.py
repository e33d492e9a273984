"""An installed fla, read without importing it, since that needs Triton and in parts a GPU."""

import ast
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

_SPEC = importlib.util.find_spec("fla")
OPS = None if _SPEC is None else Path(next(iter(_SPEC.submodule_search_locations))) / "ops"
INSTALLED = OPS is not None and importlib.util.find_spec("triton") is not None


def needed(test):
    """Mark a test that needs fla, which is not installed for quick tests."""
    skip = pytest.mark.skipif(not INSTALLED, reason="fla or triton is not installed")
    return pytest.mark.slow(skip(test))


def families():
    """The folders of fla/ops that have operators."""
    shared = ("common", "cp", "utils", "backends")
    return {x.parent.name for x in OPS.glob("*/__init__.py")} - set(shared)


@cache
def headers():
    """By name, the parameters of every public function in fla/ops, as they are written."""
    form = re.compile(r"^def (\w+)\((.*?)\)(?: ->[^:]*)?:$", re.MULTILINE | re.DOTALL)
    files = (x for x in sorted(OPS.rglob("*.py")) if "backends" not in x.parts)
    return {name: text for path in files for name, text in form.findall(path.read_text())}


def parameters(name):
    """The positional parameters of a function in fla/ops, with their defaults."""
    arguments = ast.parse(f"def f({headers()[name]}): pass").body[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [inspect.Parameter.empty] * (len(positional) - len(arguments.defaults))
    defaults += [ast.unparse(x) for x in arguments.defaults]
    return [*zip((x.arg for x in positional), defaults, strict=True)]


@cache
def naive(family, file="naive"):
    """A module of reference code, which needs only PyTorch and einops."""
    pytest.importorskip("einops")
    path = OPS / family / f"{file}.py"
    spec = importlib.util.spec_from_file_location(f"fla_{path.parent.name}_{file}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
