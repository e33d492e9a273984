"""The table of measured errors (docs/errors.md) can be measured again: every row, on few tokens."""

import subprocess
import sys
from pathlib import Path

import pytest
from slow import only

pytest.importorskip("ml_dtypes")
ROOT = Path(__file__).parents[2]
MODES = [
    pytest.param((), id="operators"),
    pytest.param(("--states",), id="states"),
    pytest.param(("--products",), id="products"),
]


@pytest.mark.parametrize("mode", only(["operators", "products"], MODES))
def test_every_row(mode):
    command = [sys.executable, ROOT / "tools/error_table.py", "--markdown", "--lengths", "8", *mode]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    names, _, *rows = [x.strip("| ").split(" | ") for x in found.stdout.splitlines()]
    assert rows and all(len(row) == len(names) for row in rows)
    documented = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    for row in rows:
        assert f"| {' | '.join(row[:1] if mode == ('--states',) else row[:2])} |" in documented
        if not mode:
            assert float(row[4]) <= float(row[3]), f"the float32 error of {row[0]}"
