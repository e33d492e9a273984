"""The C sources: what the kernels' headers include, and how their equations are laid out."""

import re
import shutil
import subprocess
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from linattn import _linattn

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "src/kernel"
FILES = sorted([*ROOT.glob("src/**/*.[ch]"), *ROOT.glob("linattn/include/*.h")])
#: The folders of the kernels, from the lowest on; tables, beside them, are below all.
STACK = (
    "vectors", "tiles", "maps", "decays", "convolution", "scans", "recurrences", "attention",
    "steps",
)  # fmt: skip
INCLUDE = re.compile(r'^#include "(.*)"', re.M)

EQUATION = re.compile(r" *\* {3,}\S")
PROSE = re.compile(r" *\* \S")
OVERLONG = """/* A comment.
 *
 *    {}
 *    b = 1
 */
""".format("a = 0" + 30 * " + 0")


def included(header):
    """The headers of the kernels that a header includes."""
    paths = ((header.parent / name).resolve() for name in INCLUDE.findall(header.read_text()))
    return {path for path in paths if path.suffix == ".h"}


def test_the_stack_is_all_folders():
    assert {*STACK} == {path.name for path in KERNELS.iterdir() if path.is_dir()}


@pytest.mark.parametrize("folder", STACK)
def test_headers_include_none_from_above(folder):
    allowed = {KERNELS, *(KERNELS / name for name in STACK[: STACK.index(folder) + 1])}
    headers = [*(KERNELS / folder).glob("*.h")]
    assert headers
    for header in headers:
        assert {path.parent for path in included(header)} <= allowed, header


def test_no_header_includes_itself():
    """TopologicalSorter raises CycleError, which names the circle."""
    headers = KERNELS.rglob("*.h")
    assert [*TopologicalSorter({path: included(path) for path in headers}).static_order()]


def test_an_operator_has_arrays_of_one_family():
    """Those of two would lie in the same memory."""
    rows = (KERNELS / "operands.def").read_text().split("\nLA_FAMILIES\n")[1]
    first, second = (
        {*re.findall(r'^LA_(?:INPUT|FIELD|ARRAY)\(\w+, "(\w+)"', family, re.M)}
        for family in rows.split("LA_END_FAMILIES")[0].split("LA_NEXT_FAMILY")
    )
    assert first and second
    for name, form in _linattn.operators.items():
        arrays = {x[0] for x in (*form["inputs"], *form["state"], *form["outputs"])}
        assert not arrays & first or not arrays & second, name


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
