"""Processes: Ctrl-C in every operator, forks and spawned children, interpreters, Python threads."""

import functools
import multiprocessing
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from every_call import every_call
from states import assert_same

import linattn
from linattn import _linattn

needs_posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no signals or forks here")

INTERRUPTED = "import interrupted; interrupted.main({arguments})"


@pytest.mark.slow
@pytest.mark.any_isa
@needs_posix
@pytest.mark.parametrize(
    ("n", "d", "m", "heads", "only"),
    [(64, 16, 16, 10000, ""), (64, 1024, 1024, 20, ""), (20000, 16, 16, 30, ""),
     (64, 16, 16, 20000, "q")],
)  # fmt: skip
def test_ctrl_c_in_every_operator(interpreter, n, d, m, heads, only):
    """Within 50 ms of the processor's time, in calls of many heads and in those of large ones.

    Twice that passes, for processors half as fast, and LINATTN_SLOWER times that, for builds that
    are slower by design.  Not counted is what NumPy does before and after: copies of states and
    sums over heads.
    """
    limit = 100 * float(os.environ.get("LINATTN_SLOWER", "1"))
    arguments = ", ".join(map(repr, (str(n), str(d), str(m), str(heads), only)))
    stdout, _ = interpreter(INTERRUPTED.format(arguments=arguments), timeout=600)
    late = dict(line.split() for line in stdout.splitlines())
    assert len(late) > (5 if only else 15)
    assert all(ms == "None" or float(ms) < limit for ms in late.values()), late


class Interrupt(Exception):
    pass


@pytest.fixture
def timer():
    """timer(seconds): raises Interrupt, in the main thread, so much later; 0: not any more."""

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def slow_workers():
    """_linattn.delay_workers, undone afterwards."""
    yield _linattn.delay_workers
    _linattn.delay_workers(0)


def interrupted(run, timer, seconds):
    """Whether the timer interrupted a call, and what the call gave otherwise."""
    result = None
    try:
        try:
            timer(seconds)
            result = run()
        finally:
            timer(0)
    except Interrupt:
        return True, None
    return False, result


@functools.cache
def heads(count, n=80, d=32):
    return np.random.default_rng(0).standard_normal((count, n, d)).astype("f4")


PACKED = np.arange(0, 8001, 100)
CUT_BY = {
    "heads": lambda: linattn.causal(*3 * [heads(640)]),
    "panels": lambda: linattn.dplr(*5 * [heads(1, 6000, 64)], -(heads(1, 6000, 64) ** 2)),
    "sequences": lambda: linattn.causal(*3 * [heads(1, 8000)], cu_seqlens=PACKED),
    "stages": lambda: linattn.causal(*3 * [heads(1, 6000, 64)]),
    "passes": lambda: linattn.causal_backward(*4 * [heads(1, 6000, 64)]),
    "interleave": lambda: linattn.causal(*3 * [heads(8000, 8).swapaxes(0, 1)]),
    "rows": lambda: linattn.softmax_attention(*3 * [heads(1, 2000)]),
    "numbers": lambda: linattn.log_decay(*3 * [heads(1, 40000, 100)]),
}


@needs_posix
@pytest.mark.parametrize("cut", CUT_BY)
def test_an_interrupt_while_the_caller_waits(threads, timer, slow_workers, cut):
    """The last that is computed is another thread's, and it looks for no signal any more."""
    threads(2)
    CUT_BY[cut]()
    slow_workers(80)
    stopped = 0
    # A busy machine may leave the worker no piece: then the call is done at once.
    for seconds in (0.04, 0.12) * 20:  # in a first pass, and in a second one
        stopped += interrupted(CUT_BY[cut], timer, seconds)[0]
        if stopped == 2:
            break
    assert stopped


@needs_posix
@pytest.mark.slow
def test_interrupts_at_any_time(threads, timer, slow_workers):
    """Every operator, with workers that are late: it is interrupted, or gives its result."""
    threads(3)
    rng = random.Random(0)
    calls = [call for call in every_call(600, 16, 24, lead=(3,)) if not call.written]
    expected = [call.results() for call in calls]
    seen = []
    for _ in range(20):
        for call, right in zip(calls, expected, strict=True):
            slow_workers(rng.choice((0, 1, 10, 40, 70)))
            stopped, results = interrupted(call.results, timer, rng.choice((1e-4, 0.003, 0.03)))
            seen.append(stopped)
            if not stopped:
                assert_same(results, right)
    assert any(seen)
    assert not all(seen)


SPAWNED = """
import multiprocessing, sys
import linattn, numpy as np
q = np.random.default_rng(0).standard_normal((4, 3000, 16)).astype("f4")
def work(i):
    return linattn.causal(q[i], q[i], q[i])
"""


@pytest.mark.any_isa
@needs_posix
@pytest.mark.parametrize(
    ("method", "spin_time"),
    [*((x, "") for x in multiprocessing.get_all_start_methods()), ("fork", "100000")],
)
def test_start_methods(tmp_path, interpreter, method, spin_time):
    (tmp_path / "spawned.py").write_text(SPAWNED)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, linattn, spawned
if __name__ == "__main__":
    linattn.set_num_threads(3)
    expected = linattn.causal(spawned.q, spawned.q, spawned.q)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        result = pool.map_async(spawned.work, range(4)).get(timeout=100)
    assert np.array_equal(np.stack(result), expected)
    print("done")
"""
    file = tmp_path / "main.py"
    file.write_text(script)
    stdout, _ = interpreter(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')",
                            timeout=120, LINATTN_SPIN_TIME=spin_time)  # fmt: skip
    assert stdout.strip() == "done"


FORKS = """
import os, signal, threading, warnings
import linattn, numpy as np
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of any fork beside a thread
linattn.set_num_threads(4)
q = np.random.default_rng(0).standard_normal((8, 3000, 32)).astype("f4")
expected = linattn.causal(q, q, q)
stop = threading.Event()
def work():
    while not stop.wait(0):
        linattn.causal(q, q, q)
thread = threading.Thread(target=work, daemon=True)
if {busy}:
    thread.start()
for i in range({count}):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs dies of it
        same = np.array_equal(linattn.causal(q, q, q), expected) and linattn.get_num_threads() == 4
        if i < 3 and os.fork() == 0:
            signal.alarm(20)
            os._exit(not np.array_equal(linattn.causal(q, q, q), expected))
        os._exit(not (same and (i >= 3 or os.wait()[1] == 0)))
    assert np.array_equal(linattn.causal(q, q, q), expected)
    assert (status := os.waitpid(pid, 0)[1]) == 0, (i, status)  # 14: it hung; 256: another result
stop.set()
if {busy}:
    thread.join()
print("done")
"""


# A child forked while another thread allocates may wait for ever for a lock of the address
# sanitizer: that of gcc 12 does not take its locks for a fork.
BUSY = [pytest.param(x, True, marks=pytest.mark.unsanitized) for x in ("", "100000")]


@pytest.mark.any_isa
@needs_posix
@pytest.mark.parametrize(("spin_time", "busy"), [("", False), ("100000", False), *BUSY])
def test_many_forks(interpreter, spin_time, busy):
    """Beside workers that sleep, that wait awake, and that compute; children fork, too."""
    script = FORKS.format(count=os.environ.get("LINATTN_FORKS", "20"), busy=busy)
    stdout, _ = interpreter(script, timeout=600, LINATTN_SPIN_TIME=spin_time)
    assert stdout.strip() == "done"


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import linattn
def run(script):
    # What the caller sees of it is worded otherwise in every version of Python.
    one = interpreters.create()
    try:
        return str(interpreters.run_string(one, script) or "")
    except Exception as error:
        return str(error)
print(run("import linattn"))
code = "import importlib.util as u; s = u.spec_from_file_location('linattn._linattn', {!r});"
print(run(code.format(linattn._linattn.__file__) + "s.loader.exec_module(u.module_from_spec(s))"))
"""


@pytest.mark.any_isa
def test_subinterpreters_are_refused_in_words(interpreter):
    """NumPy has one interpreter a process, and so have we: an ImportError, no crash."""
    stdout, _ = interpreter(SUBINTERPRETER)
    package, module = stdout.strip().splitlines()
    assert "ImportError" in package or "interpreter" in package, stdout
    ours = "linattn, like NumPy, works in the main interpreter alone"  # without NumPy
    assert ours in module or "does not support loading in subinterpreters" in module, stdout


def test_threads_of_python(threads):
    """Every operator from several Python threads at once gives the bits that it gives alone, while
    the number of threads changes."""
    threads(1)
    calls = [call for call in every_call(200, 16, 24) if not call.written]
    expected = [call.results() for call in calls]
    threads(4)
    with ThreadPoolExecutor(6) as pool:
        futures = [(i, pool.submit(call.results)) for _ in range(3) for i, call in enumerate(calls)]
        for i, future in futures:
            threads(1 + i % 4)
            assert_same(future.result(timeout=120), expected[i])
            assert linattn.get_num_threads() == 1 + i % 4


AT_ONCE = """
import random, sys, threading
from concurrent.futures import ThreadPoolExecutor
has_lock = getattr(sys, "_is_gil_enabled", lambda: True)
had_lock = has_lock()
from every_call import every_call
from states import assert_same
import linattn
from linattn._core import settings

isas = settings.available_isas()

def made():
    "Every call, with states to begin with that one instruction set computes."
    linattn.set_isa(isas[0])
    return list(every_call(70, 9, 17))

callers = 6
calls = [made() for _ in range(callers)]
start = threading.Barrier(callers)

def run(caller):
    "Each call once, as some of them change their state, in an order of its own."
    order = list(range(len(calls[caller])))
    random.Random(caller).shuffle(order)
    start.wait()
    return {i: [x.tobytes() for x in calls[caller][i].results()] for i in order}

with ThreadPoolExecutor(callers) as pool:
    futures = [pool.submit(run, caller) for caller in range(callers)]
    changes = random.Random(0)
    while not all(future.done() for future in futures):
        linattn.set_num_threads(changes.randint(1, 4))
        linattn.set_isa(changes.choice(isas))
    found = [future.result() for future in futures]

linattn.set_num_threads(1)
expected = []
for isa in isas:
    again = made()
    linattn.set_isa(isa)
    expected.append([[x.tobytes() for x in call.results()] for call in again])
for caller, results in enumerate(found):
    for i, result in results.items():
        assert any(result == of_isa[i] for of_isa in expected), calls[caller][i].name
assert has_lock() == had_lock  # an import may bring it back
"""


def test_first_calls_at_once(interpreter):
    """Gufuncs are made by several threads at once, while the pool and the instruction set change:
    every result has the bits of one of the sets."""
    interpreter(AT_ONCE, timeout=300)


ERRORS = {"all fine": 1.0, "overflow": 1e38, "nan": np.nan, "inf": np.inf}


@pytest.mark.unsanitized
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", ERRORS.values(), ids=ERRORS)
def test_no_operator_raises_floating_point_errors(threads, value, dtype):
    """Whatever the operands hold, in any thread, in kernels and beside them."""
    for count in (1, 2, 4):
        threads(count)
        for call in every_call(200, 16, 24, dtype=dtype):
            first = next(x for x in (*call.options.values(), *call.operands)
                         if isinstance(x, np.ndarray) and x.ndim > 1)  # fmt: skip
            if value != 1 and first.flags.writeable:
                with np.errstate(all="ignore"):
                    first[..., 0, :] = value
            with np.errstate(all="raise"):
                call.run()


def test_no_operator_raises_floating_point_errors_on_the_way_in_and_out():
    """Numbers too small for what is computed in, sums and results too large for it."""
    rng = np.random.default_rng(0)
    half = np.float16(6e4) * rng.choice([-1, 1], (2, 5, 4)).astype(np.float16)
    wide = rng.standard_normal((3, 2, 5, 4)).astype(np.float32)
    maps = [linattn.feature_maps.get(x) for x in ("elu", "exp", "dpfp")]
    maps += [kind.sample(4, 6, rng=0) for kind in (linattn.feature_maps.PositiveRandomFeatures,
             linattn.feature_maps.RandomFourierFeatures)]  # fmt: skip
    with np.errstate(all="raise"):
        linattn.causal(half, half, half, normalize=False)
        linattn.causal(*(wide.astype(">f4"),) * 3, eps=1e-300, scale=1e-300)
        for phi in maps:
            phi(half), phi(1e3 * wide)
            for operator in (linattn.causal_backward, linattn.noncausal_backward):
                for normalize in (False, True):
                    operator(1e3 * wide, half, half, 1e30 * wide, feature_map=phi,
                             normalize=normalize)  # fmt: skip
        linattn.softmax_attention_backward(half[None], half, half, half[None])
        linattn.linformer_backward(half, half, half, half[0], half[0], half)
        linattn.causal_conv1d_backward(half, half[0, :4].T[:, :3], half)
        linattn.log_decay_backward(half, half[0], half[0, 0], half)


def far(x: np.ndarray, rows: int) -> np.ndarray:
    """So many rows, all of them x."""
    return np.lib.stride_tricks.as_strided(x, (rows, *x.shape), (0, *x.strides))


def test_indices_beyond_32_bits():
    """Rows of stride 0, 2^31 of them and more: sums over all of them that are known."""
    rows = 2**31 + 5
    # So many keys, of which few exist.
    keys = far(np.full(2, 0.5), rows)
    values = far(np.full(3, 2.0), rows)
    o = linattn.noncausal(np.ones((1, 2)), keys, values, feature_map="identity", normalize=False,
                          key_lengths=7)  # fmt: skip
    np.testing.assert_array_equal(o, np.full((1, 3), 7 * 2.0))
    # Heads so far apart that 32 bits do not reach from one to the next.
    memory = np.zeros(2**32 + 64, np.int8)  # pages that are touched alone take room
    heads = np.lib.stride_tricks.as_strided(memory.view("f4"), (2, 3, 4), (2**32, 16, 4))
    heads[...] = np.arange(24).reshape(2, 3, 4)
    near = heads.copy()
    for f in (linattn.causal, linattn.noncausal, linattn.softmax_attention):
        assert_same(f(heads, heads, heads), f(near, near, near))
        assert_same(f(heads, heads, heads, out=heads.copy()), f(near, near, near))
    far_rows = np.lib.stride_tricks.as_strided(memory.view("f4"), (3, 4), (2**31, 4))
    far_rows[...] = np.arange(12).reshape(3, 4)
    rows, beta = far_rows.copy(), np.ones(3, "f4")
    assert_same(linattn.delta(*3 * [far_rows], beta), linattn.delta(*3 * [rows], beta))
    assert_same(linattn.causal_backward(*4 * [far_rows]), linattn.causal_backward(*4 * [rows]))


@pytest.mark.slow
def test_sums_over_more_than_32_bits_count():
    """2^31 + 5 tokens of ones: the state counts them."""
    rows = 2**31 + 5
    keys = far(np.ones(1), rows)
    o = linattn.noncausal(np.ones((1, 1)), keys, keys, feature_map="identity", normalize=False)
    assert o[0, 0] == rows
