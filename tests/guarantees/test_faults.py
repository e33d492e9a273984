"""Failing allocations and threads: a MemoryError, nothing leaked or half written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import output
from slow import slow

SUPPORT = Path(__file__).resolve().parents[1] / "support"

pytestmark = [
    pytest.mark.any_isa,
    pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD and glibc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="something else is preloaded"),
]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    flags = ["-O1", "-fPIC", "-shared", "-ldl"]
    built = subprocess.run(["cc", SUPPORT / "faults.c", "-o", library, *flags], check=False)
    if built.returncode:
        pytest.skip("faults.c wants glibc")
    return library


def run(shim, *arguments, script="faults.py", timeout=300):
    environment = {"LD_PRELOAD": str(shim), "PYTHONMALLOC": "malloc"}
    return output(SUPPORT / script, *arguments, timeout=timeout, **environment).strip()


def test_memory(shim):
    """Every allocation of the extension fails in turn, in a call of every operator."""
    assert int(run(shim, "extension")) > 100


def test_memory_of_python(shim):
    """And every one that Python makes meanwhile."""
    assert int(run(shim, "python")) > 1000


@pytest.mark.parametrize("count", [0, *slow(1, 2)])
def test_threads(shim, count):
    """Fewer than asked for, or none: the same numbers."""
    assert run(shim, "threads", str(count)) == f"right {count}"


@pytest.mark.slow
def test_memory_of_an_import(shim):
    """The import of the extension, and what it makes on first use: whole once there is memory."""
    assert run(shim, "memory", script="faults_import.py") == "whole"


@pytest.mark.slow
def test_memory_of_a_call_by_xla(shim):
    pytest.importorskip("jax", reason="JAX is not installed")
    assert run(shim, "xla", script="faults_import.py") == "whole"


@pytest.mark.parametrize(("told", "found"), [(-1, 1), (5, 5), (5000, 1024)])
def test_no_sets_of_cpus(shim, told, found):
    """Where the system has none an import takes the number that it tells of."""
    assert int(run(shim, "cpus", str(told), script="faults_import.py")) == found


def test_overrun(shim):
    """A kernel that wrote past its scratch would be told of."""
    assert run(shim, "overrun") == "told"
