"""Every row of benchmarks/ runs: once, on tiny arrays, untimed, its results checked."""

import functools
import importlib
from pathlib import Path

import numpy as np
import pytest
from processes import output

import linattn
from linattn._cli.rows import Row

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


@pytest.mark.slow
def test_fla_is_hidden_only_while_models_are_imported(interpreter):
    """Rows that need it come after them."""
    pytest.importorskip("transformers")
    script = """
import sys
from adapters import Transformers
Transformers.module("mamba")
print("fla" in sys.modules)
"""
    assert interpreter(script, PYTHONPATH=str(RUN.parent))[0] == "False\n"


def test_results_name_their_commands():
    """Each section, and every family of rows."""
    text = (RUN.parent / "RESULTS.md").read_text(encoding="utf-8")
    _, *sections = text.split("\n## ")
    assert sections and all("`python " in x for x in sections)
    commands = " ".join(x for x in text.split("`") if x.startswith("python run.py "))
    assert {*families()} - {"main"} <= {*commands.split()}


def test_memory_is_measured_with_the_threads_of_the_row(monkeypatch):
    """Threads that share a head keep more states than one."""
    pytest.importorskip("threadpoolctl")
    monkeypatch.syspath_prepend(RUN.parent)
    counts = []

    def call():
        counts.append(linattn.get_num_threads())
        return np.empty(0)

    benchmarks = importlib.import_module("run")
    monkeypatch.setattr(benchmarks, "in_fresh_process", lambda function, *args: function(*args))
    before = linattn.get_num_threads()
    linattn.set_num_threads(3)
    try:
        benchmarks.measured(Row("", lambda: call, (), unit="MiB"), 0.0, 2)
    finally:
        linattn.set_num_threads(before)
    assert {*counts} == {2}
