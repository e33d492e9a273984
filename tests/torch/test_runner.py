"""Short calls on the threads of another library: which ones, the same bits, and after a fork."""

import ctypes
import os
import sys

import numpy as np
import pytest

import linattn
import linattn.torch
from linattn import _linattn
from linattn.torch._core import runner

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
RUNNER = ctypes.CFUNCTYPE(None, WORK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


@pytest.fixture
def asked(threads):
    """A runner that does everything on the caller's thread, and how many threads it was asked for.

    It stays in place of PyTorch's until the test is over.
    """
    threads(3)
    asked = []

    def run(work, arg, count, flags):
        asked.append((count, flags))
        work(arg)

    function = RUNNER(run)
    _linattn.set_runner(ctypes.cast(function, ctypes.c_void_p).value)
    yield asked
    runner.install()


def operands(n):
    return np.random.default_rng(0).standard_normal((3, 6, n, 32)).astype("f4")


@pytest.mark.parametrize("n, times", [(20_000, 0), (400, 1), (30, 1), (2, 0)])
def test_which_calls(asked, n, times):
    """Short ones, of microseconds too, as the runner's threads are awake; but not the shortest."""
    q, k, v = operands(n)
    o = linattn.causal(q, k, v)
    # One that was late lets the next thousand go.
    for _ in range(1001 * times):
        if asked:
            break
        assert np.array_equal(linattn.causal(q, k, v), o)
    assert asked == [(3, 0)] * times
    linattn.set_num_threads(1)
    assert np.array_equal(linattn.causal(q, k, v), o)
    linattn.set_num_threads(3)
    assert len(asked) == times


@pytest.mark.skipif(sys.platform != "linux", reason="GCC's OpenMP is PyTorch's on Linux")
def test_openmp_is_found():
    assert runner.openmp() != 0


FORKS = """
import os, signal
import numpy as np, torch, linattn, linattn.torch
linattn.set_num_threads(2)
q = np.random.default_rng(0).standard_normal((6, 400, 32)).astype("f4")
expected = linattn.causal(q, q, q)
for _ in range(20):
    torch.ones(512, 512) @ torch.ones(512, 512)
    assert np.array_equal(linattn.causal(q, q, q), expected)
child = os.fork()
if child == 0:
    signal.alarm(30)  # a child that hangs dies of it
    os._exit(not np.array_equal(linattn.causal(q, q, q), expected))
print(os.waitpid(child, 0)[1], np.array_equal(linattn.causal(q, q, q), expected))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork(interpreter):
    """OpenMP's threads do not survive it, and a call on them would hang."""
    stdout, _ = interpreter(FORKS)
    assert stdout.split() == ["0", "True"]
