"""The options of the tests: --listed-skips, and --kernels, which chooses files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
def test_of_the_system():
    pytest.skip("espeak-ng is not installed")
def test_new():
    pytest.skip("not today")
@pytest.mark.xfail
def test_of_a_known_fault():
    assert False
"""
MISSING = "import pytest; pytest.importorskip('no_such_module')"


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        (["--listed-skips"], "1 failed, 1 skipped, 1 xfailed, 1 error"),
        (["--listed-skips", "-n", "1"], "1 failed, 1 skipped, 1 xfailed, 1 error"),
        ([], "3 skipped, 1 xfailed"),
    ],
    ids=["here", "in workers", "not asked for"],
)
def test_skips(tmp_path, options, ends):
    tests = tmp_path / "tests"
    (tests / "tools").mkdir(parents=True)
    for name in ("conftest.py", "allowed_skips.txt"):
        shutil.copy(HERE / name, tests)
    (tests / "tools" / "test_speech.py").write_text(TESTS)
    (tests / "test_other.py").write_text(MISSING)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(
        [sys.executable, *command, *options, tmp_path],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith(ends), done.stdout


def test_files_of_the_kernels(pytestconfig):
    """Those of every recurrence, and none of a bridge."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(HERE / "conftest.py"))
    found = [file for file in HERE.glob("*/test_*.py") if conftest.of_kernels(file)]
    names = {file.stem for file in found}
    recurrences = "gated_delta", "gated_delta_states", "scan", "complex_scan", "mlstm", "wkv"
    kernels = "twin", "half", "linear_scan_kernels", "selective_scan_kernels", "fused_steps"
    assert {f"test_{x}" for x in (*recurrences, *kernels)} <= names
    assert not {file.parent.name for file in found} & {"torch", "fla"}


def test_kernels_alone(tmp_path):
    shutil.copy(HERE / "conftest.py", tmp_path)
    for name, first in {"a": "import numpy", "b": "import torch, numpy", "c": "import os"}.items():
        (tmp_path / f"test_{name}.py").write_text(f"{first}\ndef test():\n    pass\n")
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--kernels", "--collect-only"]
    done = subprocess.run(
        [sys.executable, *command, "-n", "0", f"--rootdir={tmp_path}", tmp_path], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [x for x in done.stdout.splitlines() if "::" in x] == ["test_a.py::test"]
