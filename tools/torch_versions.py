"""Run the tests of linattn.torch with the oldest PyTorch that is promised, and with the newest.

``python tools/torch_versions.py [VERSION ...]`` makes a virtual environment for each version, with
the present interpreter, and runs the tests of this checkout there.  A version takes about 4 GB, as
its libraries for GPUs are installed too, and a few minutes; .ci/run does not do this.  The last
lines say which versions were run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What the tests of linattn.torch import besides PyTorch.
NEEDED = ["ml_dtypes", "mpmath", "numpy>=2.1", "pytest>=8", "scipy", "setuptools"]
TESTS = (
    "tests/torch", "tests/clusters/test_torch_distributed.py",
    "tests/fla/test_functions.py", "tests/fla/test_errors.py",
)  # fmt: skip


def oldest() -> str:
    """The version that pyproject.toml promises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = re.findall(r"torch>=([\d.]+)", " ".join(project["optional-dependencies"]["torch"]))
    return f"=={found}.*"


def run(version: str, room: Path) -> str:
    """The versions and the closing line of a run."""
    venv.create(room, with_pip=True)
    python = room / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"torch{version}", *NEEDED], check=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    tests = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(tests.stdout)
    about = "import sys, torch; print(torch.__version__, 'on Python', sys.version.split()[0])"
    found = subprocess.run([python, "-c", about], capture_output=True, text=True, check=True)
    return f"torch {found.stdout.strip()}: {tests.stdout.strip().splitlines()[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION",
        help="of PyTorch, such as 2.9.0 (default: the oldest that is promised, and the newest)",
    )  # fmt: skip
    lines = []
    for version in parser.parse_args().versions or [oldest(), ""]:
        with tempfile.TemporaryDirectory() as room:
            given = f"=={version}" if version[:1].isdigit() else version
            lines.append(run(given, Path(room)))
    print(*lines, sep="\n")
    sys.exit(any(re.search(r"\d+ (failed|error)", x) or "passed" not in x for x in lines))


if __name__ == "__main__":
    main()
