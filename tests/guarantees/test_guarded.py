"""No operator accesses memory outside its arrays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from isas import ISAS

pytestmark = pytest.mark.any_isa


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects pages as Linux does")
@pytest.mark.parametrize("isa", ISAS)
def test_stays_within_bounds(isa):
    script = Path(__file__).parents[1] / "support" / "guarded.py"
    env = os.environ | {"LINATTN_ISA": isa}
    run = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, check=False
    )
    assert run.stdout == "within bounds\n", f"exit code {run.returncode}\n{run.stderr}"
