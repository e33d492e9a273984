"""linattn.torch.distributed in one, two and four processes of this machine."""

from pathlib import Path

import pytest
from processes import output, python
from slow import slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SUPPORT = Path(__file__).parents[1] / "support"
RUN = "-m", "torch.distributed.run", "--standalone"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="built without distributed")
@pytest.mark.parametrize("processes", slow(1, 2, 4))
def test_processes(processes):
    """Outputs and gradients are those of one process; errors of one are errors of all."""
    number = f"--nproc-per-node={processes}"
    assert "all the same" in output(*RUN, number, "torch_program.py", timeout=300, cwd=SUPPORT)


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
    run = python(*RUN, "--nproc-per-node=2", program, timeout=200)
    assert run.returncode != 0 and "went on" not in run.stdout
