"""The pool: the same bits for any number of threads, after forks, in moved processes."""

import os

import numpy as np
import pytest
from slow import grid, slow
from states import assert_same
from table import ATTENTION

import linattn

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="no affinities here"
)
needs_posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.mark.parametrize("normalize", [True, False])
@grid(
    lambda dtype, feature_map: (dtype == "float32") == (feature_map != "elu"),
    dtype=["float16", "float32", "float64"],
    feature_map=["elu", "identity", "l2norm"],
)
def test_a_backward_of_one_head(threads, dtype, feature_map, normalize):
    """In passes where there are threads for it: with states, keys that do not exist, and none."""
    wide = np.promote_types(dtype, np.float32)
    for lead, n, d, m in (((), 2000, 33, 64), ((2,), 1001, 64, 33), ((), 6000, 20, 20)):
        options = {"feature_map": feature_map, "normalize": normalize, "scale": 0.7}
        case = ATTENTION[0]._replace(options=options)
        operands = {x: abs(y) for x, y in case.operands(lead, n, d=d, m=m, dtype=dtype).items()}
        states = [case.state(lead, d=d, m=m, dtype=wide, seed=x) for x in (1, 2)]
        ends = dict(zip(("initial_state", "grad_state"), states, strict=True))
        for keys, given in ((None, {}), (777, {}), (0, {}), (None, ends), (0, ends)):
            more = given | {"key_lengths": keys, "eps": 0.0 if keys == 0 else 1e-3}
            threads(1)
            expected = case.backward(operands, **more)
            for count in (2, 3, 7):
                threads(count)
                assert_same(case.backward(operands, **more), expected)


@pytest.mark.parametrize("backward", [False, True])
def test_a_state_of_which_some_columns_are_zero(threads, backward):
    """0 / 0 is 0 only for queries that see no key: the whole state says so, not a panel."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((300, size), np.float32) for size in (16, 16, 256))
    state = linattn.State(np.zeros((16, 256), np.float32), np.zeros(16, np.float32))
    state.s[:, -1] = 1
    options = dict(feature_map="identity", eps=0.0, key_lengths=0, initial_state=state)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(
            linattn.causal_backward(q, k, v, np.ones_like(v), **options)[0]
            if backward
            else linattn.causal(q, k, v, **options)
        )
    assert np.isnan(found[0][0]).any()
    for x in found[1:]:
        np.testing.assert_array_equal(x, found[0])


FORKS = """
import os, signal, sys
import numpy as np
import linattn
threads, heads, n = map(int, sys.argv[1:])
n //= int(os.environ.get("LINATTN_SLOWER", "1"))
linattn.set_num_threads(threads)
q, k, v = np.random.default_rng(0).standard_normal((3, heads, n, 64), dtype=np.float32)
if threads == 4:
    gufunc, operands = linattn.ufuncs.causal_elu, (q, k, v)
else:
    gufunc, operands = linattn.ufuncs.causal_backward_elu, (q, k, v, v)
out = tuple(map(np.empty_like, operands[:gufunc.nout]))
def call():
    for x in out:
        x[...] = np.nan
    gufunc(*operands, 1.0, 1e-6, out=out)
    return out
def is_right():
    return all(map(np.array_equal, call(), expected))
expected = [x.copy() for x in call()]
parent, children = os.getpid(), []

def handler(signum, frame):
    child = os.fork()
    if child:
        children.append(child)

signal.signal(signal.SIGALRM, handler)
for i in range(6):
    signal.setitimer(signal.ITIMER_REAL, 0.005 + 0.005 * i)
    right = is_right()
    signal.setitimer(signal.ITIMER_REAL, 0)  # where the call was faster
    if os.getpid() != parent:
        again = is_right()  # with workers of its own
        os._exit(0 if right and again else 1)
    assert right
codes = [os.waitpid(child, 0)[1] for child in children]
print(len(codes), sum(map(bool, codes)))
"""


@pytest.mark.any_isa
@needs_posix
@pytest.mark.parametrize("shape", [(4, 24, 16384), (3, 1, 2**17), *slow((4, 1, 2**18))])
def test_fork_in_the_middle_of_a_call(interpreter, shape):
    """A signal handler that forks: the child goes on with the call, and nothing is missing.

    Of one head, threads wait for the turns of their shares of stages, or for the state that another
    hands on, which the child does not have.
    """
    stdout, _ = interpreter(FORKS.replace("sys.argv[1:]", str(shape)), timeout=300)
    forked, wrong = map(int, stdout.split())
    assert forked >= 3
    assert wrong == 0


GROWING = """
import os
import numpy as np, linattn
q = np.random.default_rng(0).standard_normal((16, 600, 16)).astype("f4")
linattn.set_num_threads(1)
expected = linattn.causal(q, q, q)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for count in range(2, 16):
    linattn.set_num_threads(count)
    assert np.array_equal(linattn.causal(q, q, q), expected)
print("same")
"""


@pytest.mark.any_isa
@needs_affinity
def test_a_pool_that_grows(interpreter):
    """Short calls on one CPU: a thread may not have run yet when the next one is started."""
    assert interpreter(GROWING)[0].strip() == "same"


MOVED = """
import os
import numpy as np, linattn
q = np.random.default_rng(0).standard_normal((6, 2000, 32)).astype("f4")
linattn.set_num_threads(1)
expected = linattn.causal(q, q, q)
linattn.set_num_threads(3)
every = sorted(os.sched_getaffinity(0))
for cpus in ({every[0]}, {every[-1]}, every, {every[-1]}):
    os.sched_setaffinity(0, cpus)
    for _ in range(3):
        assert np.array_equal(linattn.causal(q, q, q), expected)
print("same")
"""


@pytest.mark.any_isa
@needs_affinity
def test_a_process_that_is_moved(interpreter):
    """To one CPU, to another one that it was not on when its workers began, and back."""
    assert interpreter(MOVED)[0].strip() == "same"


@pytest.mark.any_isa
@needs_affinity
def test_leaves_the_callers_cpus_alone(threads):
    """The workers keep off the caller's CPU; the caller may go where it could before."""
    before = os.sched_getaffinity(0)
    threads(2)
    linattn.causal(*np.ones((3, 8, 512, 64), np.float32))
    assert os.sched_getaffinity(0) == before
