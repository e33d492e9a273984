"""What setup.py builds: an archive that installs, the instruction sets asked for, the flags."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from linattn import _config

pytest.importorskip("setuptools", minversion="77")
pytest.importorskip("pip")

ROOT = Path(__file__).resolve().parent.parent
ISA = _config.available_isas()[-1]


def run(*command, cwd=ROOT, **environment):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The source distribution; no list of files that an earlier build left is read."""
    folder = tmp_path_factory.mktemp("sdist")
    run("setup.py", "-q", "egg_info", "--egg-base", folder, "sdist", "--dist-dir", folder)
    (file,) = folder.glob("*.tar.gz")
    return file


def test_archive_holds_every_file(archive):
    """Of the sources, the package and the tests."""
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    package = "linattn/**/*.py", "linattn/_linattn.pyi", "linattn/py.typed"
    tests = "tests/*.*", "tests/support/*.*", "tools/*.*", "tools/fuzz/*"
    patterns = ("src/*/*", *package, *tests, "notebooks/*.ipynb")
    wanted = {
        str(file.relative_to(ROOT))
        for pattern in patterns
        for file in ROOT.glob(pattern)
        if file.suffix != ".so"
    }
    assert wanted and wanted <= held, sorted(wanted - held)


def test_the_description_stands_alone(archive):
    """An index shows it without the repository's files, and no mathematics of LaTeX."""
    with tarfile.open(archive) as tar:
        (info,) = (x for x in tar.getmembers() if x.name.count("/") == 1 and "PKG-INFO" in x.name)
        text = tar.extractfile(info).read().decode()
    assert "Description-Content-Type: text/markdown" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all(link.startswith("https://") for link in links)
    assert "$$" not in text and "It is for people who use NumPy" in text


def test_no_compiler_is_an_error_of_one_line():
    for compiler in ("no-such-cc", "no-such-cc -O1"):
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", os.devnull],
            cwd=ROOT, env={**os.environ, "CC": compiler}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("linattn: no C compiler (no-such-cc); ")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("CC", "", "linattn: CC is empty; "),
        ("CC", "gcc '", "linattn: CC is "),
        ("CFLAGS", "-O1 '-g", "linattn: CFLAGS is "),
        ("LDFLAGS", '"', "linattn: LDFLAGS is "),
    ],
)
def test_a_wrong_variable_is_an_error_of_one_line(name, value, line):
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", os.devnull],
        cwd=ROOT, env={**os.environ, name: value}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(line)


def test_an_unbuilt_clone_says_what_to_do(tmp_path):
    shutil.copytree(ROOT / "linattn", tmp_path / "linattn", ignore=shutil.ignore_patterns("*.so"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import linattn"],  # another, installed, would be found
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert "ImportError: " in last and "`pip install -e .`" in last


USE = """
import linattn, numpy as np
x = np.ones((2, 9, 4))
assert np.allclose(linattn.causal(x, x, x), 1)
assert linattn.__file__.startswith(TARGET), linattn.__file__
print(*linattn._config.available_isas())
"""


@pytest.mark.slow
def test_installs_from_the_archive(archive, tmp_path):
    """With one instruction set, to be quick; and that set alone is there."""
    target = tmp_path / "site"
    run(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--target", target, archive,
        cwd=tmp_path, LINATTN_ISAS=ISA,
    )  # fmt: skip
    script = f"TARGET = {str(target)!r}\n{USE}"
    stubs = "ufuncs.pyi", "_signatures/__init__.pyi", "_signatures/torch.pyi"
    assert all((target / "linattn" / name).exists() for name in stubs)
    use = {"PYTHONPATH": str(target), "LINATTN_ISA": ""}
    assert run("-c", script, cwd=tmp_path, **use).split() == [ISA]


FLAGS = """
import setuptools  # first: it brings distutils
from distutils import core
(ext,) = core.run_setup("setup.py", stop_after="init").ext_modules
print(*ext.extra_compile_args)
"""


def test_cflags_may_ask_for_debug_information():
    assert "-g0" in run("-c", FLAGS, CFLAGS="-O1 -fno-plt").split()
    for flags in ("-g", "-O1 -g3"):
        assert "-g0" not in run("-c", FLAGS, CFLAGS=flags).split()


def test_an_unknown_instruction_set_is_refused():
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT, env={**os.environ, "LINATTN_ISAS": f"{ISA} mmx"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "LINATTN_ISAS has mmx" in done.stderr
