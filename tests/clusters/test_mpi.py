"""linattn.mpi on one to four ranks of this machine."""

import shutil
import sys
from pathlib import Path

import pytest
from processes import start
from slow import slow

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytest.importorskip("dask", reason="the cases are those of dask arrays")

SUPPORT = Path(__file__).parents[1] / "support"
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
@pytest.mark.parametrize("ranks", slow(1, 2, 3, 4))
def test_ranks(ranks):
    """Forward and backward of every recurrence, states, lengths, uneven stretches, errors."""
    command = MPIEXEC, "-n", str(ranks), sys.executable, "mpi_program.py"
    run = start(*command, timeout=300, cwd=SUPPORT)
    assert run.returncode == 0 and "all the same" in run.stdout, run.stderr[-3000:]


DIES = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import linattn.mpi
x = np.ones((100, 4))
linattn.mpi.causal(x, x, x)
if MPI.COMM_WORLD.rank == 1:
    {how}
linattn.mpi.causal(x, x, x)
print("went on")
"""


@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "raise OSError('gone')"])
def test_a_rank_that_dies(how):
    """Ends the job, where the others would wait for it."""
    program = sys.executable, "-m", "mpi4py", "-c", DIES.format(how=how)
    run = start(MPIEXEC, "-n", "3", *program, timeout=100)
    assert run.returncode != 0 and "went on" not in run.stdout
