"""Threads among neighbours: the tables of docs/howto/threads.md, a row a test.

The environment at import, affinity, quotas and threadpoolctl are in test_threads_configuration.py,
PyTorch's number in torch/test_machinery.py, dask's nanny in clusters/test_dask.py.
"""

import os

import pytest

pytestmark = pytest.mark.any_isa

UNSET = {"LINATTN_NUM_THREADS": "", "OMP_NUM_THREADS": ""}

LOKY = """
import os
for name in ("LINATTN_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.pop(name, None)
import joblib

def threads(_):
    import linattn
    return linattn.get_num_threads()

if __name__ == "__main__":
    limits = {limits}
    with joblib.parallel_config("loky", n_jobs=2, **limits):
        print(*set(joblib.Parallel()(joblib.delayed(threads)(i) for i in range(2))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("inner", [None, 1, 3])
def test_loky(interpreter, inner):
    """What joblib says, or each process its share of the CPUs."""
    joblib = pytest.importorskip("joblib")
    limits = {} if inner is None else {"inner_max_num_threads": inner}
    stdout, _ = interpreter(LOKY.format(limits=limits), **UNSET)
    assert int(stdout) == (inner or max(joblib.cpu_count() // 2, 1))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities here")
def test_affinity(interpreter):
    """As taskset, mpiexec -bind-to core and srun --cpu-bind set it."""
    script = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import linattn
print(linattn.get_num_threads())
"""
    stdout, _ = interpreter(script, **UNSET)
    assert stdout.strip() == "1"


CALLERS = """
import os, threading
import numpy as np, linattn
x = np.ones((8, 3000, 16), np.float32)
linattn.causal(x, x, x)  # the workers are there now
most, done = [], threading.Event()
def watch():
    while not done.wait(0.001):
        most.append(len(os.listdir("/proc/self/task")))
callers = [
    threading.Thread(target=lambda: [linattn.causal(x, x, x) for _ in range(5)]) for _ in range(6)
]
watcher = threading.Thread(target=watch)
watcher.start()
before = len(os.listdir("/proc/self/task"))
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
done.set()
watcher.join()
print(max(most) - before - len(callers))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc here")
def test_callers_share_the_threads(interpreter):
    """dask's and joblib's threads: however many call at once, no thread more than was said."""
    stdout, _ = interpreter(CALLERS, LINATTN_NUM_THREADS="3")
    assert int(stdout) <= 0
