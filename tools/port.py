"""Computes the same on other systems as here, as far as they can be run here.

    python tools/port.py [--isa x86-64-v3]

Builds digests.c with src/ext and the kernels of one instruction set by ziglang's clang for Linux
with glibc and with musl, and for Windows, runs each (Windows under Debian's wine64, musl by its own
loader, Debian's musl), and compares what they print.  tests/tools/test_port.py compiles what
needs Python too.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src/kernel/kernels.c"
FLAGS = ("-std=gnu11", "-g0", "-Wall", "-Wextra", "-Werror")
TARGETS = {  # and what runs a program for it, once its loader is found
    "x86_64-linux-gnu.2.28": (),
    "x86_64-linux-musl": ("/lib/ld-musl-x86_64.so.1",),
    "x86_64-windows-gnu": ("wine64", "/usr/lib/wine/wine64"),
}


def zig(target, *arguments):
    """Runs ziglang's clang for a target; its complaints end the run."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS, *arguments]
    done = subprocess.run(
        [str(x) for x in command],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def needs_python(source):
    return re.search(r"Python\.h|numpy_api\.h|xla\.h", source.read_text()) is not None


def kernels(target, isa, folder, level="-O3", dtypes=("f32", "f64")):
    """Objects of the kernels, of float32 and of float64."""
    march = [f"-march={isa}"] if isa.startswith("x86") else []
    march += ["-fPIC"] if "linux" in target else []

    def compile_unit(dtype):
        place = folder / f"{target}_{dtype}.o"
        macros = f"-DLA_ISA={isa}", f"-DLA_DTYPE={dtype}"
        zig(target, level, "-ffp-contract=fast", *march, *macros, "-c", KERNELS, "-o", place)
        return place

    with ThreadPoolExecutor() as pool:
        return list(pool.map(compile_unit, dtypes))


def digests(target, isa, folder):
    """What the program of that target prints; None where it cannot be run here."""
    runners = TARGETS[target]
    found = [x for x in map(shutil.which, runners) if x]
    if runners and not found:
        return None
    program = folder / f"{target}.exe"
    sources = [x for x in ROOT.glob("src/ext/*.c") if not needs_python(x)]
    objects = kernels(target, isa, folder)
    libraries = [] if "windows" in target else ["-lm", "-dynamic"]
    zig(
        target, "-O2", f"-DLA_HAS_{isa}", "-Isrc/ext", "tools/digests.c", *sources, *objects,
        *libraries, "-o", program,
    )  # fmt: skip
    done = subprocess.run([*found[:1], program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{target}\n{done.stdout[-200:]}{done.stderr}"
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--isa", default="x86-64-v3")
    isa = parser.parse_args().isa.replace("-", "_")
    here = None
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            printed = digests(target, isa, Path(folder))
        if printed is None:
            print(f"{target}: not run, none of {', '.join(TARGETS[target])} is here")
            continue
        here = here or printed
        same = printed == here
        print(f"{target}: {len(printed.splitlines())} digests", "as here" if same else "DIFFER")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    main()
