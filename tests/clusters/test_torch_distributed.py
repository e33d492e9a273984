"""linattn.torch.distributed in one, two and four processes of this machine."""

import subprocess
import sys
from pathlib import Path

import pytest
from slow import slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="built without distributed")
@pytest.mark.parametrize("processes", [2, *slow(1, 4)])
def test_processes(processes):
    """Outputs and gradients are those of one process; errors of one are errors of all."""
    run = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={processes}", str(SUPPORT / "torch_program.py"),
        ],
        capture_output=True, text=True, timeout=300, cwd=SUPPORT, check=False,
    )  # fmt: skip
    assert run.returncode == 0 and "all the same" in run.stdout, run.stderr[-3000:]


DIES = """
import datetime, os
import torch, torch.distributed as dist
from linattn.torch import distributed
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
x = torch.ones(100, 4)
distributed.causal(x, x, x)
if dist.get_rank() == 1:
    os._exit(3)
distributed.causal(x, x, x)
print("went on")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="built without distributed")
@pytest.mark.slow
def test_a_process_that_dies(tmp_path):
    """Is an error in the others, after the group's timeout at the latest."""
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    run = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            str(program),
        ],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode != 0 and "went on" not in run.stdout
