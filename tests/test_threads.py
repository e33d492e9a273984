"""Threads change no bit; fork, concurrent callers and Ctrl-C are safe."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import recurrences
from cases import BACKWARD, FORWARD, Case, call, make
from layouts import token_major
from states import assert_same, flat

import linattn
from linattn import _config

OPERATORS = FORWARD + BACKWARD
SHAPES = [  # lead, n, d, m
    ((), 1, 1, 1),
    ((), 129, 17, 5),
    ((), 3000, 64, 64),  # one head: panels
    ((), 2**17 + 11, 4, 4),  # one long head: segments
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


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "identity", "l2norm"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_backward_of_one_head(threads, dtype, feature_map, normalize):
    """In passes where there are threads for it: with states, keys that do not exist, and none."""
    rng = np.random.default_rng(0)
    wide = np.promote_types(dtype, np.float32)
    for lead, n, d, m in (((), 2000, 33, 64), ((2,), 1001, 64, 33), ((), 6000, 20, 20)):
        q, k, v, g = (rng.random((*lead, n, x)).astype(dtype) for x in (d, d, m, m))
        states = [
            linattn.State(*(rng.random((*lead, *x)).astype(wide) for x in ((d, m), (d,))))
            for _ in range(2)
        ]
        if not normalize:
            states = [x._replace(z=None) for x in states]
        ends = dict(zip(("initial_state", "grad_state"), states, strict=True))
        for keys, given in ((None, {}), (777, {}), (0, {}), (None, ends), (0, ends)):
            options = {"feature_map": feature_map, "normalize": normalize, "key_lengths": keys}
            options |= {"scale": 0.7, "eps": 0.0 if keys == 0 else 1e-3}
            threads(1)
            expected = flat(linattn.causal_backward(q, k, v, g, **options, **given))
            for count in (2, 3, 7):
                threads(count)
                assert_same(linattn.causal_backward(q, k, v, g, **options, **given), expected)


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


@pytest.mark.parametrize(
    ("own", "omp", "expected"),
    [
        ("", "1", "1"),
        ("", "3", "3"),
        ("2", "1", "2"),
        ("", "4,2", "4"),
        ("", " 5 ,2", "5"),
        ("", "5000", "1024"),
    ],
)
def test_openmp_environment(interpreter, own, omp, expected):
    script = "import linattn; print(linattn.get_num_threads())"
    stdout, _ = interpreter(script, LINATTN_NUM_THREADS=own, OMP_NUM_THREADS=omp)
    assert stdout.strip() == expected


def test_malformed_openmp_environment(interpreter):
    """It is not ours to refuse."""
    script = "import linattn; print(linattn.get_num_threads())"
    unset, _ = interpreter(script, LINATTN_NUM_THREADS="", OMP_NUM_THREADS="")
    for omp in ("many", "0", "-1", ",2", "1.5"):
        stdout, _ = interpreter(script, LINATTN_NUM_THREADS="", OMP_NUM_THREADS=omp)
        assert stdout == unset


@pytest.mark.parametrize("bad", ["many", "0", "-1", "5000", "4,2"])
def test_malformed_environment(interpreter, bad):
    _, stderr = interpreter("import linattn", LINATTN_NUM_THREADS=bad, code=1)
    assert f"LINATTN_NUM_THREADS is {bad!r}; expected 1 to 1024" in stderr


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"
CGROUPS = {  # what /proc/self/cgroup says, files, and CPUs
    "none": ("", {}, None),
    "v2": ("0::/user/app", {f"{V2}/user/app/cpu.max": "150000 100000"}, 2),
    "v2 of a parent": (
        "0::/user/app",
        {f"{V2}/user/cpu.max": "300000 100000", f"{V2}/user/app/cpu.max": "max 100000"},
        3,
    ),
    "v2 in a container": ("0::/", {f"{V2}/cpu.max": "20000 100000"}, 1),
    "v2 elsewhere": ("0::/../app", {f"{V2}/cpu.max": "20000 100000"}, 1),
    "v2 without a quota": ("0::/app", {f"{V2}/app/cpu.max": "max 100000"}, None),
    "v1": (
        "5:memory:/app\n4:cpu,cpuacct:/app\n1:name=systemd:/app",
        {f"{V1}/app/cpu.cfs_quota_us": "250000", f"{V1}/app/cpu.cfs_period_us": "100000"},
        3,
    ),
    "v1 in a container": (
        "4:cpu:/docker/1a2b",
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        4,
    ),
    "v1 without a quota": (
        "4:cpu,cpuacct:/",
        {f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"},
        None,
    ),
    "both": (
        "4:cpu,cpuacct:/app\n0::/app",
        {
            f"{V1}/app/cpu.cfs_quota_us": "200000",
            f"{V1}/app/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/app/cpu.max": "max 100000",
        },
        2,
    ),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_quota_of_cpus(tmp_path, case):
    lines, files, expected = CGROUPS[case]
    for name, text in {"proc/self/cgroup": lines, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert _config.cpu_quota(tmp_path) == expected


def test_no_control_groups(tmp_path):
    assert _config.cpu_quota(tmp_path) is None


def test_quota_limits_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cpus = _config._default_threads()
    for quota, expected in ((1, 1), (cpus + 5, cpus), (None, cpus)):
        monkeypatch.setattr(_config, "cpu_quota", lambda quota=quota: quota)
        assert _config._default_threads() == min(expected, linattn.get_num_threads())


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
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert stdout.split() == ["interrupted", "alive"], stderr


UNCOVERED = """
import resource, signal, sys
import linattn, numpy as np
signal.signal(signal.SIGALRM, signal.default_int_handler)
linattn.set_num_threads(1)
unit = 1 if sys.platform == "darwin" else 1024
resident = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
q = np.broadcast_to(np.float32(1), (2 * 10**7, 64))
none, state = np.zeros(0, np.intp), np.zeros((0, 64, 64), np.float32)
f = linattn.ufuncs.causal_state_identity_sum
out = np.empty((2 * 10**7, 64), np.float32)
before = resident()
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    f(q, q, q, 1.0, none, none, none, state, out=(out, None))
except KeyboardInterrupt:
    print((resident() - before) / out.nbytes)
"""


@needs_posix
def test_ctrl_c_where_nothing_is_computed(interpreter):
    """Tokens of no sequence: their zeros are written in a loop of its own, few of them here."""
    stdout, _ = interpreter(UNCOVERED)
    assert float(stdout) < 0.5


@pytest.mark.parametrize("lead", [(2**40,), (2**20, 2**20)], ids=str)
@pytest.mark.parametrize("rule", recurrences.RULES, ids=str)
def test_no_tokens_of_many_heads(rule, lead):
    """There is nothing to write: they are not gone over one by one."""
    arrays = recurrences.make(rule, 0, 3, 2, lead=(1,) * len(lead))
    arrays = {x: np.broadcast_to(y, (*lead, *y.shape[len(lead) :])) for x, y in arrays.items()}
    grad_out = arrays.pop("grad_out")
    o = getattr(linattn, rule.name)(**arrays, **rule.options)
    assert o.shape == (*lead, 0, 2)
    if "bonus" not in arrays:  # whose gradient has a row for every head
        backward = getattr(linattn, f"{rule.name}_backward")
        dq, *_ = backward(**arrays, grad_out=grad_out, **rule.options)
        assert dq.shape == (*lead, 0, 3)


STATES_INTERRUPTED = """
import signal
import linattn, numpy as np
signal.signal(signal.SIGPROF, signal.default_int_handler)
heads = 2**23
q = np.broadcast_to(np.zeros((1, 0, 1), "f4"), (heads, 0, 1))
begin = np.zeros(1, int)
s0, s = np.broadcast_to(np.ones((1, 1), "f4"), (heads, 1, 1, 1)), np.zeros((heads, 1, 1, 1), "f4")
signal.setitimer(signal.ITIMER_PROF, 0.02)
try:
    linattn.ufuncs.causal_state_elu_sum(q, q, q, 1.0, begin, begin, begin, s0, out=(None, s))
except KeyboardInterrupt:
    print(s.mean())
"""


@needs_posix
def test_ctrl_c_where_states_are_handed_through(interpreter):
    """Of heads without a token, whose keys are all the same."""
    stdout, _ = interpreter(STATES_INTERRUPTED)
    assert float(stdout) < 0.5


STEP_INTERRUPTED = """
import signal
import linattn, numpy as np
signal.signal(signal.SIGPROF, signal.default_int_handler)
d, m = {d}, {m}
lead = (2**28 // (d * m),) if d * m < 2**28 else ()  # a tenth of a second, or more
k, v, beta = np.ones((*lead, d), "f4"), np.ones((*lead, m), "f4"), np.ones(lead, "f4")
state = linattn.State(np.zeros((*lead, d, m), "f4"))
options = {{"feature_map": "identity", "in_place": True}}
linattn.set_num_threads(1)


def call(k, v, beta, state):
    {call}


# The first call makes the gufunc, which may take as long as the signal.
call(*np.ones((2, 2), "f4"), np.ones((), "f4"), linattn.State(np.zeros((2, 2), "f4")))
signal.setitimer(signal.ITIMER_PROF, 0.02)  # of processor time
try:
    call(k, v, beta, state)
except KeyboardInterrupt:
    print("interrupted")
assert state.s.reshape(-1)[0] != 0 and state.s.reshape(-1)[-1] == 0
"""


@needs_posix
@pytest.mark.parametrize(("d", "m"), [(64, 64), (2**14, 2**14)])
@pytest.mark.parametrize(
    "call",
    [
        "linattn.step(k, k, v, state, normalize=False, **options)",
        "linattn.delta_step(k, k, v, beta, state, **options)",
    ],
)
def test_ctrl_c_in_a_step(interpreter, call, d, m):
    """Between heads, and within one whose state is large: the rest of the states is as it was."""
    stdout, _ = interpreter(STEP_INTERRUPTED.format(call=call, d=d, m=m))
    assert stdout.split() == ["interrupted"]


def others_ran(work) -> int:
    """How often another Python thread got a turn during work(), which ran once."""
    turns, stop = [], threading.Event()

    def count():
        while not stop.wait(0.001):
            turns.append(1)

    other = threading.Thread(target=count)
    other.start()
    before = len(turns)
    work()
    during = len(turns) - before
    stop.set()
    other.join()
    return during


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="no lock here to be given up"
)
def test_other_python_threads_run_meanwhile(threads):
    """Whatever the size of the outputs and the number of heads: the work decides."""
    threads(1)
    K = np.ones((2_000_000, 64), np.float32)
    state = linattn.State(np.ones((30, 2000, 600), np.float32), np.ones((30, 2000), np.float32))
    q, v = np.ones((30, 2000), np.float32), np.ones((30, 600), np.float32)
    beta = np.ones(30, np.float32)
    axes = linattn.ufuncs.noncausal_elu

    def steps():
        for _ in range(5):
            linattn.step(q, q, v, state, in_place=True)

    def delta_steps():
        for _ in range(5):
            linattn.delta_step(q / 2000, q / 2000, v, beta, linattn.State(state.s), in_place=True)

    for work in (
        lambda: linattn.noncausal(K[:1], K, K),
        lambda: axes(K[:1], K, K, 1.0, 1e-6),
        lambda: linattn.softmax_attention(K[:1], K, K),
        steps,
        delta_steps,
    ):
        assert others_ran(work) >= 3


FORKS = """
import os, signal, sys
import numpy as np
import linattn
linattn.set_num_threads(4)
heads, n = 24, 16384
q, k, v = np.random.default_rng(0).standard_normal((3, heads, n, 64), dtype=np.float32)
expected = linattn.causal(q, k, v)
parent, children = os.getpid(), []

def handler(signum, frame):
    child = os.fork()
    if child:
        children.append(child)

signal.signal(signal.SIGALRM, handler)
out = np.full_like(expected, np.nan)
for i in range(6):
    signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.01 * i)
    out[...] = np.nan
    linattn.causal(q, k, v, out=out)
    right = np.array_equal(out, expected)
    if os.getpid() != parent:
        again = np.array_equal(linattn.causal(q, k, v), expected)  # with workers of its own
        os._exit(0 if right and again else 1)
    assert right
codes = [os.waitpid(child, 0)[1] for child in children]
print(len(codes), sum(map(bool, codes)))
"""


@needs_posix
def test_fork_in_the_middle_of_a_call(interpreter):
    """A signal handler that forks: the child goes on with the call, and nothing is missing."""
    stdout, _ = interpreter(FORKS, timeout=300)
    forked, wrong = map(int, stdout.split())
    assert forked >= 3
    assert wrong == 0


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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities here")
def test_a_process_that_is_moved(interpreter):
    """To one CPU, to another one that it was not on when its workers began, and back."""
    assert interpreter(MOVED)[0].strip() == "same"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities here")
def test_leaves_the_callers_cpus_alone(threads):
    """The workers keep off the caller's CPU; the caller may go where it could before."""
    before = os.sched_getaffinity(0)
    threads(2)
    linattn.causal(*np.ones((3, 8, 512, 64), np.float32))
    assert os.sched_getaffinity(0) == before
