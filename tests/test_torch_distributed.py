"""linattn.torch.distributed in one, two and four processes of this machine."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

HERE = Path(__file__).parent


@pytest.mark.skipif(not torch.distributed.is_available(), reason="built without distributed")
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes(processes):
    """Outputs and gradients are those of one process; errors of one are errors of all."""
    run = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={processes}", str(HERE / "torch_program.py"),
        ],
        capture_output=True, text=True, timeout=300, cwd=HERE, check=False,
    )  # fmt: skip
    assert run.returncode == 0 and "all the same" in run.stdout, run.stderr[-3000:]
