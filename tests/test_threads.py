"""Threads change no bit; fork, concurrent callers and Ctrl-C are safe."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import BACKWARD, FORWARD, Case, call, make
from layouts import token_major

import linattn
from linattn import _segments

OPERATORS = FORWARD + BACKWARD
SHAPES = [  # lead, n, d, m
    ((), 1, 1, 1),
    ((), 129, 17, 5),
    ((), 3000, 64, 64),  # one head: panels
    ((), _segments.LONG + 11, 4, 4),  # one long head: segments
    ((), 300, 8, 500),  # wide values
    ((), 40, 500, 500),
    ((3,), 1001, 32, 48),
    ((2, 8), 257, 64, 64),
    ((64,), 20, 8, 8),
    ((), 70001, 8, 8),
]

needs_posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def results(case, operands):
    result = call(linattn, case, operands)
    return result if case.backward else (result,)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_to_eight_threads(threads, operator, shape):
    lead, n, d, m = shape
    for dtype in ("float32", "float64") if n < 20000 else ("float32",):
        case = Case(operator, n, d, m, lead=lead, dtype=dtype)
        operands = make(case)
        threads(1)
        expected = results(case, operands)
        for count in (2, 3, 4, 5, 6, 7, 8):
            threads(count)
            assert linattn.get_num_threads() == count
            for x, y in zip(results(case, operands), expected, strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"{count} threads")


@pytest.mark.parametrize("operator", OPERATORS)
def test_layout_and_threads(threads, operator):
    """A view that arrives as many small calls shares its work out differently: still no bit."""
    case = Case(operator, 2000, 32, 32, lead=(2, 3))
    operands = make(case)
    threads(1)
    expected = results(case, operands)
    views = [token_major(x) for x in operands]
    for count in (1, 2, 5):
        threads(count)
        for x, y in zip(results(case, views), expected, strict=True):
            np.testing.assert_array_equal(x, y)


def test_environment(interpreter):
    script = "import linattn; print(linattn.get_num_threads())"
    for count in ("1", "3"):
        stdout, _ = interpreter(script, LINATTN_NUM_THREADS=count)
        assert stdout.strip() == count


def test_concurrent_callers(threads):
    """Python threads share the pool, whatever each of them calls, while its size changes."""
    cases = [Case(operator, 500, 16, 16 + i, lead=(2,)) for i, operator in enumerate(OPERATORS * 2)]
    operands = [make(case, seed=i) for i, case in enumerate(cases)]
    threads(1)
    expected = [results(*pair) for pair in zip(cases, operands, strict=True)]
    threads(4)
    with ThreadPoolExecutor(8) as pool:
        futures = [
            (i, pool.submit(results, cases[i], operands[i]))
            for _ in range(20)
            for i in range(len(cases))
        ]
        for i, future in futures:
            threads(1 + i % 4)
            for x, y in zip(future.result(timeout=60), expected[i], strict=True):
                np.testing.assert_array_equal(x, y)


def test_threadpoolctl(threads):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    threads(3)
    (entry,) = [x for x in threadpoolctl.threadpool_info() if "linattn" in str(x.values())]
    assert entry["num_threads"] == 3
    with threadpoolctl.threadpool_limits(limits=1):
        assert linattn.get_num_threads() == 1
    assert linattn.get_num_threads() == 3
    with threadpoolctl.threadpool_limits(limits={entry["user_api"]: 2}):
        assert linattn.get_num_threads() == 2
    assert linattn.get_num_threads() == 3


FORK = """
import os, signal, sys, warnings
import linattn, numpy as np
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of any fork beside a thread
linattn.set_num_threads(4)
q = np.random.default_rng(0).standard_normal((8, 3000, 32)).astype("f4")
expected = linattn.causal(q, q, q)
for generation in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs dies of it
        same = np.array_equal(linattn.causal(q, q, q), expected)
        same = same and linattn.get_num_threads() == 4
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(20)
            os._exit(not np.array_equal(linattn.causal(q, q, q), expected))
        _, status = os.waitpid(grandchild, 0)
        os._exit(not (same and status == 0))
    assert np.array_equal(linattn.causal(q, q, q), expected)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
print("done")
"""

FORK_WHILE_BUSY = """
import os, signal, threading, warnings
import linattn, numpy as np
warnings.simplefilter("ignore", DeprecationWarning)
linattn.set_num_threads(4)
q = np.random.default_rng(0).standard_normal((8, 3000, 32)).astype("f4")
expected = linattn.causal(q, q, q)
stop = threading.Event()
def work():
    while not stop.is_set():
        linattn.causal(q, q, q)
thread = threading.Thread(target=work)
thread.start()
try:
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            os._exit(not np.array_equal(linattn.causal(q, q, q), expected))
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
finally:
    stop.set()
    thread.join()
print("done")
"""

MULTIPROCESSING = """
import multiprocessing, warnings
import linattn, numpy as np
warnings.simplefilter("ignore", DeprecationWarning)
q = np.random.default_rng(0).standard_normal((4, 8, 500, 16)).astype("f4")
def work(i):
    return linattn.causal(q[i], q[i], q[i])
if __name__ == "__main__":
    linattn.set_num_threads(2)
    expected = linattn.causal(q, q, q)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        result = pool.map_async(work, range(4)).get(timeout=40)
    assert np.array_equal(np.stack(result), expected)
    print("done")
"""


@needs_posix
@pytest.mark.parametrize("script", [FORK, FORK_WHILE_BUSY, MULTIPROCESSING])
def test_fork(interpreter, script):
    stdout, _ = interpreter(script)
    assert stdout.strip() == "done"


# Minutes of work in little memory: operands of stride 0.  The heads of (3, 2) reach the kernels
# in three calls of the inner loop, and none of the later ones may start.
INTERRUPTED = """
import signal
import linattn, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)
linattn.set_num_threads({threads})
heads, n, d, m = {heads}, {n}, {d}, {m}
x = np.broadcast_to(np.ones(d, "f4"), (*heads, n, d))
v = np.ones((3, 4), "f4")[:, :2] if len(heads) == 2 else np.ones(heads, "f4")
v = np.broadcast_to(v[..., None, None], (*heads, n, m))
operands = {operands}
print("ready", flush=True)
try:
    linattn.{operator}(*operands, normalize=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    y = np.ones((5, 3))
    assert linattn.causal(y, y, y).shape == (5, 3)  # and the pool is fit for use
    print("alive", flush=True)
"""
ENDLESS = {
    "causal": ("x, x, v", 2**23, 2**14, 1),
    "noncausal": ("x[..., :1, :], x, v", 2**26, 2**12, 1),
    "causal_backward": ("x, x, v, v", 2**16, 2**10, 2**10),
    "noncausal_backward": ("x, x, v, v", 2**16, 2**10, 2**10),
}


@needs_posix
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("count", "heads"), [(1, ()), (2, (3,)), (2, (3, 2))])
def test_ctrl_c(operator, count, heads):
    operands, n, d, m = ENDLESS[operator]
    script = INTERRUPTED.format(
        operator=operator, operands=operands, n=n, d=d, m=m, heads=heads, threads=count
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().strip() == "ready"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.3)  # it is in the call
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=5)
        finally:
            process.kill()
    assert stdout.split() == ["interrupted", "alive"], stderr


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities here")
def test_leaves_the_callers_cpus_alone(threads):
    """The workers keep off the caller's CPU; the caller may go where it could before."""
    before = os.sched_getaffinity(0)
    threads(2)
    linattn.causal(*np.ones((3, 8, 512, 64), np.float32))
    assert os.sched_getaffinity(0) == before
