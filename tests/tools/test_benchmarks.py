"""Every row of benchmarks/ runs: once, on tiny arrays, untimed, its results checked."""

import functools
from pathlib import Path

import pytest
from processes import output

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "benchmarks" / "run.py"

pytestmark = pytest.mark.skipif(not RUN.exists(), reason="there are no benchmarks here")


def families():
    return sorted(x.stem for x in (RUN.parent / "rows").glob("[a-z]*.py"))


run = functools.partial(output, RUN)


@pytest.mark.slow
def test_rows():
    """In one process: to import the libraries takes longer than most families."""
    known, lines = {*families()}, run("--smoke").splitlines()
    rows = [line for line in lines if line.partition(": ")[0] in known]
    assert {x.partition(": ")[0] for x in rows} == known
    assert [x for x in rows if not (x.endswith(" ok") or " skipped: " in x)] == []


def test_every_family_is_listed():
    found = {line.partition(": ")[0] for line in run("--list").splitlines()}
    assert found == {*families()}


def test_results_name_their_commands():
    """Each section, and every family of rows."""
    text = (RUN.parent / "RESULTS.md").read_text(encoding="utf-8")
    _, *sections = text.split("\n## ")
    assert sections and all("`python " in x for x in sections)
    commands = " ".join(x for x in text.split("`") if x.startswith("python run.py "))
    assert {*families()} - {"main"} <= {*commands.split()}
