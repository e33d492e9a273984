"""Equations in the comments of the C sources stay as they are laid out."""

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(ROOT.glob("src/*/*.[ch]"))

EQUATION = re.compile(r" *\* {3,}\S")
PROSE = re.compile(r" *\* \S")
OVERLONG = """/* A comment.
 *
 *    {}
 *    b = 1
 */
""".format("a = 0" + 30 * " + 0")


def test_a_blank_line_is_between_equations_and_prose():
    """There is none where a formatter has joined the end of an equation with what follows."""
    joined = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in FILES
        for number, lines in enumerate(pairwise(file.read_text().splitlines()), start=2)
        if EQUATION.match(lines[0]) and PROSE.match(lines[1])
    ]
    assert FILES and joined == []


def test_the_formatter_keeps_equations():
    if shutil.which("clang-format") is None:
        pytest.skip("clang-format is not installed")
    command = ["clang-format", f"--assume-filename={ROOT}/src/kernel/equations.h"]
    done = subprocess.run(command, input=OVERLONG, capture_output=True, text=True, check=True)
    assert done.stdout == OVERLONG


def test_lines_are_as_long_as_the_formatter_makes_them():
    """It does not break lines of comments."""
    limit = int(re.search(r"^ColumnLimit: (\d+)", (ROOT / ".clang-format").read_text(), re.M)[1])
    overlong = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if len(line) > limit
    ]
    assert FILES and overlong == []
