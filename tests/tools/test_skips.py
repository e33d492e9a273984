"""The option --listed-skips: a skip that is not listed is a failure."""

import shutil
from pathlib import Path

import pytest
from processes import python

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
        ([], "3 skipped, 1 xfailed"),
        pytest.param(
            ["--listed-skips", "-n", "1"],
            "1 failed, 1 skipped, 1 xfailed, 1 error",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["here", "not asked for", "in workers"],
)
def test_skips(tmp_path, options, ends):
    tests = tmp_path / "tests"
    (tests / "tools").mkdir(parents=True)
    for name in ("conftest.py", "allowed_skips.txt"):
        shutil.copy(HERE / name, tests)
    (tests / "tools" / "test_speech.py").write_text(TESTS)
    (tests / "test_other.py").write_text(MISSING)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = python(*command, *options, tmp_path, cwd=tmp_path, PYTEST_ADDOPTS="")
    assert done.stdout.splitlines()[-1].startswith(ends), done.stdout
