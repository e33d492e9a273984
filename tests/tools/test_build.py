"""What setup.py builds: an archive that installs, the instruction sets asked for, the flags."""

import functools
import importlib
import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from processes import output, python
from slow import slow

import linattn
from linattn._core import settings

pytest.importorskip("setuptools", minversion="77")
pytest.importorskip("pip")

ROOT = Path(__file__).resolve().parents[2]
ISA = settings.available_isas()[-1]


BUILD = "setup.py", "-q", "build_ext", "--build-temp", os.devnull


run = functools.partial(output, cwd=ROOT)


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
    tests = "tests/*.*", "tests/[a-z]*/*.*", "tools/*.*", "tools/fuzz/*"
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
        done = python(*BUILD, cwd=ROOT, CC=compiler)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("linattn: no C compiler (no-such-cc); ")


WRONG = [("CC", "", "CC is empty; "), ("CC", "gcc '", "CC is "), ("LDFLAGS", '"', "LDFLAGS is ")]


@pytest.mark.parametrize("wrong", [("CFLAGS", "-O1 '-g", "CFLAGS is "), *slow(*WRONG)])
def test_a_wrong_variable_is_an_error_of_one_line(wrong):
    name, value, line = wrong
    done = python(*BUILD, cwd=ROOT, **{name: value})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"linattn: {line}")


def test_an_unbuilt_clone_says_what_to_do(tmp_path):
    shutil.copytree(ROOT / "linattn", tmp_path / "linattn", ignore=shutil.ignore_patterns("*.so"))
    program = "-S", "-c", "import linattn"  # without -S, another that is installed is found
    done = python(*program, cwd=tmp_path, PYTHONPATH="")
    last = done.stderr.splitlines()[-1]
    assert "ImportError: " in last and "`pip install -e .`" in last


def test_a_clone_says_that_its_module_is_older_than_its_sources(tmp_path):
    """And an installed package, beside which there are no sources, says nothing."""
    package = tmp_path / "linattn"
    shutil.copytree(Path(linattn.__file__).parent, package)
    (module,) = package.glob("_linattn*.so")
    os.utime(module, (2000, 2000))

    def warnings():
        program = "import linattn; print(linattn.__file__)"
        done = python("-c", program, cwd=tmp_path, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0 and done.stdout.startswith(str(package))
        return done.stderr

    assert warnings() == ""
    header = tmp_path / "src/kernel/vectors/vec.h"
    header.parent.mkdir(parents=True)
    header.touch()
    os.utime(header, (2001, 2001))
    told = warnings()
    assert "UserWarning: " in told and f"{header} is newer" in told and "make build" in told
    os.utime(header, (2000, 2000))
    assert warnings() == ""


USE = """
import linattn, numpy as np
x = np.ones((2, 9, 4))
assert np.allclose(linattn.causal(x, x, x), 1)
assert linattn.__file__.startswith(TARGET), linattn.__file__
print(*linattn._core.settings.available_isas())
"""


@pytest.fixture
def objects(tmp_path):
    """Variables with which a build compiles only what differs from this tree, if that is built."""
    for folder in ROOT.glob("build/temp.*"):
        shutil.copytree(folder, tmp_path / "objects", dirs_exist_ok=True)
    config = tmp_path / "objects.cfg"
    config.write_text(f"[build]\nbuild_temp = {tmp_path / 'objects'}\n")
    return {"DIST_EXTRA_CONFIG": str(config)}


@pytest.mark.slow
def test_installs_from_the_archive(archive, objects, tmp_path):
    """With one instruction set, to be quick; and that set alone is there."""
    target = tmp_path / "site"
    run(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--target", target, archive,
        cwd=tmp_path, LINATTN_ISAS=ISA, **objects,
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
            run("-c", EDITABLE, wheels, cwd=self.root, **self.tools(), **environment)
            (wheel,) = Path(wheels).glob("*.whl")
            shutil.unpack_archive(wheel, self.parent / "site", "zip")
        return self.parent / "site"

    def tools(self):
        return {"CC": str(self.compiler), "LDSHARED": str(self.compiler), "LINATTN_ISAS": ISA}

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
def test_links_objects_that_are_older_than_the_module(clone):
    """Those of a normal build, after a debug build in another folder."""
    build = "setup.py", "-q", "build_ext", "--inplace"
    run(*build, cwd=clone.root, **clone.tools())
    modules = [*clone.root.glob("**/_linattn*.so")]
    assert modules
    for module in modules:
        os.utime(module, (2**31, 2**31))
    run(*build, cwd=clone.root, **clone.tools())
    assert [x for x in modules if x.stat().st_mtime >= 2**31] == []


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
setup = core.run_setup("setup.py", stop_after="init")
(ext,) = setup.ext_modules
optimization = setup.cmdclass["build_ext"].run.__globals__["optimization"]
print(*ext.extra_compile_args, *optimization("gcc: Free Software Foundation"))
"""


ABI = """
import numpy, setuptools, sys, sysconfig
from distutils import core
told, sys.version_info = sysconfig.get_config_var, (3, int(sys.argv[1]))
sysconfig.get_config_var = lambda x: sys.argv[2] == "t" if x == "Py_GIL_DISABLED" else told(x)
setup = core.run_setup("setup.py", stop_after="init")
(ext,) = setup.ext_modules
macros = [f"{name}={value}" for name, value in ext.define_macros if value]
print(*macros, ext.py_limited_api, *(x for _, x in setup.command_options["bdist_wheel"].values()))
"""


def test_stable_abi():
    """From 3.11 on; of free-threaded Pythons, 3.15 is the first that has one."""
    assert run("-c", ABI, "11", "").split() == ["Py_LIMITED_API=0x030b0000", "True", "cp311"]
    assert run("-c", ABI, "15", "").split() == ["Py_LIMITED_API=0x030b0000", "True", "cp311"]
    assert run("-c", ABI, "14", "t").split() == ["False", "False"]
    assert run("-c", ABI, "15", "t").split() == ["Py_TARGET_ABI3T=0x030f0000", "True", "cp315"]


def test_cflags_may_ask_for_debug_information():
    assert "-g0" in run("-c", FLAGS, CFLAGS="-O1 -fno-plt").split()
    for flags in ("-g", "-O1 -g3"):
        assert "-g0" not in run("-c", FLAGS, CFLAGS=flags).split()


@pytest.mark.slow
def test_cflags_may_ask_for_less_optimisation():
    """Setup.py's flags follow those of CFLAGS on the command line, and would prevail."""
    for flags, level in {"-g -O1": "-O1", "-O1 -Og": "-Og", "-O3 -g": "-O2", "": "-O2"}.items():
        levels = [x for x in run("-c", FLAGS, CFLAGS=flags).split() if x.startswith("-O")]
        assert levels == [level], flags


def test_an_unknown_instruction_set_is_refused():
    done = python("setup.py", "--version", cwd=ROOT, LINATTN_ISAS=f"{ISA} mmx")
    assert done.returncode != 0
    assert "LINATTN_ISAS has mmx" in done.stderr


@pytest.mark.slow
def test_wheels_have_the_same_bytes(tmp_path, monkeypatch):
    """Built in two folders, and Python keeps no compiled module in them.

    docs/platforms.md says the same of what a compiler makes.
    """
    if os.name != "posix":
        pytest.skip("a shell script is the compiler")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    script = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    wheels = []
    for parent in (tmp_path / "a", tmp_path / "another"):
        clone = Clone(parent)
        run("-c", script, parent, cwd=clone.root, **clone.tools())
        wheels += parent.glob("*.whl")
    first, second = (x.read_bytes() for x in wheels)
    assert first == second


def test_a_tag_is_the_version(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "tools")
    release = importlib.import_module("release")
    for file in ("linattn/_version.py", "CITATION.cff", "CHANGELOG.md", "pyproject.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    number = release.version()
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{number}]\n")
    assert linattn.__version__ == number and release.wrong(f"v{number}") == []
    assert release.wrong("v9.9.9") == [f"the tag is v9.9.9; expected v{number}"]
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    assert release.wrong(f"v{number}") == [
        f"CHANGELOG.md's first section is Unreleased; expected {number}"
    ]
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/x.whl").write_bytes(b"")
    bill = release.sbom(tmp_path / "dist")
    assert [x["name"] for x in bill["components"]] == ["numpy", "x.whl"]
    assert bill["components"][1]["hashes"][0]["content"].startswith("e3b0c442")


def test_actions_are_pinned():
    """To commits, each with the version in a comment."""
    uses = [
        line.strip("- ")
        for file in ROOT.glob(".github/workflows/*.yml")
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert uses
    for line in uses:
        assert re.fullmatch(r"uses: [\w/.-]+@[0-9a-f]{40} # v[\d.]+", line), line
