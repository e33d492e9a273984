"""linattn.mpi on one to four ranks of this machine."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
pytest.importorskip("dask", reason="the cases are those of dask arrays")

HERE = Path(__file__).parent
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks(ranks):
    """Forward and backward of every recurrence, states, lengths, uneven stretches, errors."""
    run = subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, str(HERE / "mpi_program.py")],
        capture_output=True, text=True, timeout=300, cwd=HERE, check=False,
    )  # fmt: skip
    assert run.returncode == 0 and "all the same" in run.stdout, run.stderr[-3000:]
