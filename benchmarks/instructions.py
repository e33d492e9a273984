"""Instructions per token of each operator, counted by Valgrind: a figure without noise.

Heads of 64 in float32, one thread, x86-64-v3, as Valgrind knows no AVX-512: twice as many tokens
less once as many, so that what a call costs whatever its length is left out.  A step is one token.
Two runs of a build agree to a few thousandths, as Python's own instructions vary; compilers differ.
Needs Valgrind with its header files, and a C compiler.

    python instructions.py [NAME ...]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from every_call import Call, every_call
from report import table

import linattn

N, D = 512, 64
WARM_UP = 8  #: calls, until Python's interpreter has adapted to them
COMPILER = shlex.split(os.environ.get("CC", "cc"))
SOURCE = Path(__file__).with_name("callgrind.c")


def calls(n: int, heads: int) -> dict[str, Call]:
    """Calls by operator, on float32 arrays (heads, n, D), with states if the operator has any."""
    found: dict[str, Call] = {}
    for call in every_call(n, D, D, lead=(heads,)):
        if call.name in linattn.__all__:
            found.setdefault(call.name, call)
    return found


#: All operators, from a table that costs nothing.
NAMES = tuple(calls(1, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators; all by default")
    parser.add_argument("--count", metavar="LIBRARY", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.names or NAMES
    if args.count:
        return count(ctypes.CDLL(args.count), names)
    found = per_token(names, Path(linattn.__file__).parent.parent)
    rows = [[f"`{name}`", f"{x:,.0f}"] for name, x in found.items()]
    print(table(["operator", "instructions per token"], rows), end="")
    return 0


def environment(tree: Path) -> dict[str, str]:
    """Environment variables of a process that imports the linattn of a folder."""
    threads = {"LINATTN_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**threads, "PYTHONHASHSEED": "0", "PYTHONPATH": str(tree)}


def possible() -> bool:
    """Whether Valgrind, its header file and a compiler are installed."""
    command = [*COMPILER, "-fsyntax-only", SOURCE]
    return (
        shutil.which("valgrind") is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def per_token(names: Sequence[str], tree: Path) -> dict[str, float]:
    """By operator, of the linattn in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "callgrind.so"
        subprocess.run([*COMPILER, "-shared", "-fPIC", SOURCE, "-o", library], check=True)
        subprocess.run(
            [
                "valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no",
                f"--callgrind-out-file={folder}/out", sys.executable, __file__,
                "--count", library, *names,
            ],
            env={**os.environ, **environment(tree), "LINATTN_ISA": "x86-64-v3"}, check=True,
        )  # fmt: skip
        counts = dict(filter(None, map(counted, Path(folder).glob("out.*"))))
    return {
        name: counts[name, 1] if name.endswith("step") else (counts[name, 2] - counts[name, 1]) / N
        for name in names
    }


def counted(file: Path) -> tuple[tuple[str, int], int] | None:
    """What one of Valgrind's files says: (operator, multiple of N), instructions."""
    text = file.read_text()
    name = re.search(r"^desc: Trigger: Client Request: (\w+) (\d)$", text, flags=re.M)
    total = re.search(r"^(?:summary|totals): (\d+)", text, flags=re.M)
    return ((name[1], int(name[2])), int(total[1])) if name and total else None


def count(valgrind: ctypes.CDLL, names: tuple[str, ...]) -> int:
    """Run within Valgrind, which writes a file for each operator and length."""
    gc.disable()
    for times in (1, 2):
        table = calls(times * N, 1)
        for name in names:
            for _ in range(WARM_UP):
                table[name].run()
            valgrind.start()
            table[name].run()
            valgrind.stop(f"{name} {times}".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
