"""One sequence over the ranks of an MPI job, forward and backward."""

import numpy as np
from mpi4py import MPI

import linattn.mpi

comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)  # in a real job: this rank's tokens
q, k, v = (rng.standard_normal((8, 1000, 64), dtype=np.float32) for _ in range(3))

o = linattn.mpi.causal(q, k, v)  # reads the tokens of all ranks up to each token
dq, dk, dv = linattn.mpi.causal_backward(q, k, v, np.ones_like(o))

if comm.rank == 0:
    print(f"{comm.size} ranks, {comm.size * q.shape[-2]:,} tokens")
