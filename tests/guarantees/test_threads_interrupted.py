"""Ctrl-C and other Python threads while a call runs."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import table
from cases import BACKWARD, FORWARD
from slow import each, grid, slow

import linattn

pytestmark = pytest.mark.any_isa

OPERATORS = FORWARD + BACKWARD
needs_posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
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
@grid(
    lambda operator, heads: len(heads) == 2 or operator == "causal",
    operator=OPERATORS,
    heads=[(), (3,), (3, 2)],
)
def test_ctrl_c(operator, heads):
    operands, n, d, m = ENDLESS[operator]
    script = INTERRUPTED.format(
        operator=operator, operands=operands, n=n, d=d, m=m, heads=heads, threads=2 if heads else 1
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
import signal
import linattn, numpy as np
from memory import peak
signal.signal(signal.SIGALRM, signal.default_int_handler)
linattn.set_num_threads(1)
q = np.broadcast_to(np.float32(1), (2 * 10**7, 64))
none, state = np.zeros(0, np.intp), np.zeros((0, 64, 64), np.float32)
f = linattn.ufuncs.causal_state_identity_sum
out = np.empty((2 * 10**7, 64), np.float32)
before = peak()
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    f(q, q, q, 1.0, none, none, none, state, out=(out, None))
except KeyboardInterrupt:
    print((peak() - before) / out.nbytes)
"""


@needs_posix
def test_ctrl_c_where_nothing_is_computed(interpreter):
    """Tokens of no sequence: their zeros are written in a loop of its own, few of them here."""
    stdout, _ = interpreter(UNCOVERED)
    assert float(stdout) < 0.5


@pytest.mark.parametrize("lead", [*slow((2**40,)), (2**20, 2**20)], ids=str)
@each(table.RULES, "rule")
def test_no_tokens_of_many_heads(rule, lead):
    """There is nothing to write: they are not gone over one by one."""
    arrays = rule.operands((1,) * len(lead), 0, d=3, m=2)
    arrays = {x: np.broadcast_to(y, (*lead, *y.shape[len(lead) :])) for x, y in arrays.items()}
    grad_out = arrays.pop("grad_out")
    o = getattr(linattn, rule.name)(**arrays, **rule.options)
    assert o.shape == (*lead, 0, 2)
    if all(letters[0] == "n" for letters in rule.letters.values()):  # no row for every head
        backward = getattr(linattn, f"{rule.name}_backward")
        first, *_ = backward(**arrays, grad_out=grad_out, **rule.options)
        assert first.shape == next(iter(arrays.values())).shape


STATES_INTERRUPTED = """
import signal
import linattn, numpy as np
signal.signal(signal.SIGPROF, signal.default_int_handler)
heads = 2**23
q = np.broadcast_to(np.zeros((1, 0, 1), "f4"), (heads, 0, 1))
begin = np.zeros(1, int)
s0, s = np.broadcast_to(np.ones((1, 1), "f4"), (heads, 1, 1, 1)), np.zeros((heads, 1, 1, 1), "f4")
# Where Ctrl-C falls into a module's exec() of a string, as dataclasses do, Python exits as if the
# interrupt had not been handled: the modules are imported, and the gufunc made, before.
f = linattn.ufuncs.causal_state_elu_sum
signal.setitimer(signal.ITIMER_PROF, 0.02)
try:
    f(q, q, q, 1.0, begin, begin, begin, s0, out=(None, s))
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
# Columns before the first boundary of a line may come last.
assert state.s.reshape(-1)[:{m}].any() and state.s.reshape(-1)[-1] == 0
"""


@needs_posix
@grid(
    lambda call, d: ("delta" in call) == (d == 64),
    call=[
        "linattn.step(k, k, v, state, normalize=False, **options)",
        "linattn.delta_step(k, k, v, beta, state, **options)",
    ],
    d=[64, 2**14],
)
def test_ctrl_c_in_a_step(interpreter, call, d):
    """Between heads, and within one whose state is large: the rest of the states is as it was."""
    stdout, _ = interpreter(STEP_INTERRUPTED.format(call=call, d=d, m=d))
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


@pytest.mark.unsanitized
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
