"""What setup.py builds: an archive that installs, the instruction sets asked for, the flags."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from linattn._core import settings

pytest.importorskip("setuptools", minversion="77")
pytest.importorskip("pip")

ROOT = Path(__file__).resolve().parent.parent
ISA = settings.available_isas()[-1]


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
    package = "linattn/**/*.py", "linattn/_linattn.pyi", "linattn/torch/*/*.pyi", "linattn/py.typed"
    package += "linattn/include/*.h", "examples/**/*.*"
    tests = "tests/*.*", "tests/support/*.*", "tools/*.*", "tools/fuzz/*"
    patterns = ("src/**/*", *package, *tests, "notebooks/*.ipynb")
    wanted = {
        str(file.relative_to(ROOT))
        for pattern in patterns
        for file in ROOT.glob(pattern)
        if file.is_file() and file.suffix != ".so"
    }
    assert wanted and wanted <= held, sorted(wanted - held)
    written = {"linattn/ufuncs.pyi", *(f"linattn/_signatures/{x}.pyi" for x in ("torch", "jax"))}
    assert not written & held  # each build writes them


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
print(*linattn._core.settings.available_isas())
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


# A compiler whose objects are preprocessed sources and whose extensions are empty, to be quick.
QUICK = """#!/bin/sh
case " $* " in
*" --version "*) echo a compiler ;;
*" -c "*) exec {compiler} "$@" -E ;;
*) while [ "$1" != -o ]; do shift; done; : >"$2" ;;
esac
"""
EDITABLE = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"


class Clone:
    """A copy of the sources, as `pip install -e .` builds it, with QUICK as the compiler."""

    def __init__(self, parent):
        self.root, self.parent = parent / "linattn", parent
        for name in ("linattn", "src"):
            unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, self.root / name, ignore=unbuilt)
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.root)
        self.compiler = parent / "cc"
        self.compiler.write_text(QUICK.format(compiler=os.environ.get("CC", "cc")))
        self.compiler.chmod(0o755)

    def build(self, **environment):
        """The folder of the editable wheel's files."""
        with tempfile.TemporaryDirectory(dir=self.parent) as wheels:
            tools = {"CC": str(self.compiler), "LDSHARED": str(self.compiler), "LINATTN_ISAS": ISA}
            run("-c", EDITABLE, wheels, cwd=self.root, **tools, **environment)
            (wheel,) = Path(wheels).glob("*.whl")
            shutil.unpack_archive(wheel, self.parent / "site", "zip")
        return self.parent / "site"

    def compiled(self, **environment):
        """The names of the objects that a build compiles."""
        before = self._objects()
        self.build(**environment)
        return {name for name, time in self._objects().items() if before.get(name) != time}

    def _objects(self):
        folders = self.root.glob("build/temp.*")
        return {
            file.relative_to(folder).as_posix(): file.stat().st_mtime_ns
            for folder in folders
            for file in folder.glob("**/*.o")
        }


@pytest.fixture
def clone(tmp_path):
    if os.name != "posix":
        pytest.skip("a shell script is the compiler")
    return Clone(tmp_path)


@pytest.mark.slow
def test_an_editable_install_is_found_from_the_parent_folder(clone):
    """There, the clone's folder itself is found first, as a namespace package."""
    find = "import importlib.util, site, sys; site.addsitedir(sys.argv[1]); "
    find += "print(importlib.util.find_spec('linattn').origin)"
    (found,) = run("-S", "-c", find, clone.build(), cwd=clone.parent, PYTHONPATH="").split()
    assert Path(found) == clone.root / "linattn/__init__.py"


@pytest.mark.slow
def test_only_what_has_changed_is_compiled(clone):
    kernels = {f"{ISA.replace('-', '_')}_{dtype}/src/kernel/kernels.o" for dtype in ("f32", "f64")}
    sources = {f"src/ext/{file.stem}.o" for file in ROOT.glob("src/ext/*.c")}
    xla = {x for x in sources if x.endswith(("/xla.o", "/xla_python.o", "/module.o"))}
    assert clone.compiled() == kernels | sources
    assert clone.compiled() == set()
    for header, objects in {
        "src/kernel/vectors/f32.h": {x for x in kernels if "f32" in x},
        "src/kernel/recurrences/causal.h": kernels,
        "src/ext/xla_ffi.h": xla,
    }.items():
        (clone.root / header).touch()
        assert clone.compiled() == objects, header
    assert clone.compiled(CFLAGS="-DLA_ANY") == kernels | sources
    assert clone.compiled(CFLAGS="-DLA_ANY") == set()


@pytest.mark.slow
def test_what_failed_to_compile_is_not_up_to_date(clone):
    clone.build()
    text = clone.compiler.read_text()
    clone.compiler.write_text(text.replace("-E ;;", "-E && exit 1 ;;").replace("exec ", ""))
    (clone.root / "src/ext/xla_ffi.h").touch()
    with pytest.raises(AssertionError, match="exit status 1"):
        clone.build()
    clone.compiler.write_text(text)
    assert "src/ext/xla.o" in clone.compiled()


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
