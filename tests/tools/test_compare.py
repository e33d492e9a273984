"""benchmarks/compare.py distinguishes a slower linattn from noise."""

import shutil
from pathlib import Path

import pytest
from processes import python

import linattn

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(linattn.__file__).parent
compare = ROOT / "benchmarks" / "compare.py"

pytestmark = pytest.mark.skipif(not compare.exists(), reason="there are no benchmarks here")


def run(base, head, *names):
    """Its exit status and the rows of its table: operator, us, ratio, interval, verdict."""
    options = ["--starts", "5", "--pairs", "6", "--heads", "2", "-n", "64", "--no-counts"]
    done = python(compare, base, head, "--only", *names, *options)
    assert done.returncode in (0, 1), done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "`" in line]
    assert [row[0] for row in rows] == [f"`{name}`" for name in names]
    return done.returncode, rows


@pytest.mark.slow
def test_twice_as_much_work_is_found(tmp_path):
    """In a copy, where causal computes all twice."""
    shutil.copytree(PACKAGE, tmp_path / "linattn", ignore=shutil.ignore_patterns("__pycache__"))
    lines = ("once = __getattr__('causal')", "def causal(*x, **y):", "    once(*x, **y)",
             "    return once(*x, **y)")  # fmt: skip
    with (tmp_path / "linattn" / "__init__.py").open("a") as file:
        file.write("\n".join(("", *lines, "")))
    status, (twice, _) = run(PACKAGE.parent, tmp_path, "causal", "noncausal")
    assert status == 1 and twice[-1] == "slower"
    assert 1.5 < float(twice[2]) < 2.5
    status, (half,) = run(tmp_path, PACKAGE.parent, "causal")
    assert status == 0 and half[-1] == "faster"


@pytest.mark.parametrize(
    ("ratios", "low", "high", "verdict"),
    [
        ([1.1, 1.09, 1.2, 1.1, 1.11, 1.0, 1.08, 1.1, 1.12], 1.08, 1.12, "slower"),
        ([1.0, 0.99, 1.02, 1.01, 1.0, 1.3, 0.98, 1.0, 1.0], 0.99, 1.02, "same"),
        ([1.1, 1.0, 1.2, 0.9, 1.3], 0.9, 1.3, ""),
        ([0.5, 0.5, 0.6], 0.5, 0.6, "faster"),
    ],
)
def test_intervals(monkeypatch, ratios, low, high, verdict):
    """Of nine, one is left out at each end; of five, none."""
    monkeypatch.syspath_prepend(str(compare.parent))
    import compare as module

    found = module.interval([(1.0, x) for x in ratios])
    assert (found.low, found.high, found.verdict) == (low, high, verdict)
