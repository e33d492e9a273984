"""Memory beyond the arrays: one state a thread at any length, and no hidden copy."""

import os
import sys

import numpy as np
import pytest
from memory import traced
from slow import each, slow
from table import ATTENTION

import linattn

pytestmark = [pytest.mark.any_isa, pytest.mark.unsanitized]

SCRIPT = """
import linattn, numpy as np
from memory import peak
MIB = 2**20
linattn.set_num_threads(2)
n, d = {n}, 64
shape, view = ((n, 2, d), (-2, -3)) if {token_major} else ((2, n, d), (0, 0))
q, k, v, g, o = (np.full(shape, 0.5, "f4").swapaxes(*view) for _ in range(5))
few = slice(None), slice(0, 3000)
linattn.{operator}(*(x[few] for x in (q, k, v, g)[:{count}]))  # threads and their stacks
before = peak()
result = linattn.{operator}(q, k, v, {last})
new = sum(x.nbytes for x in result) if isinstance(result, tuple) else 0
print((peak() - before - new) / MIB)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
@pytest.mark.parametrize("token_major", [False, *slow(True)])
@pytest.mark.parametrize(
    ("operator", "mebibytes"),
    [("causal", 16), ("noncausal", 16), ("causal_backward", 20), ("noncausal_backward", 20)],
)
def test_beyond_the_arrays(interpreter, operator, token_major, mebibytes):
    """Each array has 32 MiB here: a copy of any would show.

    The system may round each array up to huge pages of 2 MiB in the meantime.
    """
    backward = operator.endswith("backward")
    script = SCRIPT.format(
        operator=operator, token_major=token_major, n=2**16,
        count=4 if backward else 3, last="g" if backward else "out=o",
    )  # fmt: skip
    stdout, _ = interpreter(script)
    assert float(stdout) <= mebibytes


MANY = {"key_lengths": np.arange(200) % 9, "cu_seqlens": np.arange(0, 1601, 8)}


@pytest.mark.parametrize("dtypes", ["f4", "f4 f8", *slow(">f4")])
@pytest.mark.parametrize("way", MANY)
@each(ATTENTION, "rule")
def test_no_states_where_none_is_asked_for(rule, way, dtypes):
    """Of 200 sequences of 8 tokens each, whose states would be 8 times an operand."""
    heads = {"key_lengths": (200, 8), "cu_seqlens": (1600,)}[way]
    arrays = rule.operands(heads[:-1], heads[-1], d=64, m=64)
    operands = {name: x.astype(dtypes[:3].strip()) for name, x in arrays.items()}
    operands["v"] = arrays["v"].astype(dtypes.split()[-1])  # the others are cast
    grad_out = operands.pop("grad_out")
    options = rule.options | {way: MANY[way]}
    backward = getattr(linattn, f"{rule.name}_backward")
    forward = getattr(linattn, rule.name)
    calls = (
        lambda: forward(**operands, **options),
        (lambda: backward(**operands, grad_out=grad_out, **options)),
    )
    copies = sum(x.nbytes for x in (*arrays.values(),)) if dtypes != "f4" else 0
    for call in calls:
        peak, result = traced(call)
        new = sum(x.nbytes for x in (result if isinstance(result, tuple) else (result,)))
        states = 200 * 64 * 64 * operands["v"].itemsize
        assert peak - new - copies < states / 4


GRADIENTS = """
import linattn, numpy as np
from memory import peak
linattn.set_num_threads(2)
n, d = 2**18, 64
q, v, c = (np.full((n, d), 0.125, "f4") for _ in range(3))
operands = q, q, v, {operands}, c
backward = linattn.{name}_backward
backward(*(x[:3000] for x in operands))
before = peak()
result = backward(*operands)
print((peak() - before - sum(x.nbytes for x in result)) / 2**20)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
@pytest.mark.parametrize(
    ("name", "gates", "mebibytes"),
    [
        pytest.param("delta", [], 14, marks=pytest.mark.slow),
        ("gated", ["(n, d), -0.5"], 10),
        pytest.param("gated_delta", ["n, -0.1"], 16, marks=pytest.mark.slow),
        pytest.param("gated_delta", ["n, -60.0"], 16, marks=pytest.mark.slow),
        pytest.param("gated_delta", ["n, -1e30"], 26, marks=pytest.mark.slow),
        pytest.param("gated_delta", ["(n, d), -0.1"], 16, marks=pytest.mark.slow),
        pytest.param("gated_delta", ["(n, d), -70.0"], 40, marks=pytest.mark.slow),
        pytest.param(
            "momentum_delta", ["(n, d), 0.125", "n, -0.5", "n, -0.5", "n, 0.5"], 32,
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_gradients_keep_few_states(interpreter, name, gates, mebibytes):
    """Some square roots of n states, even if every token is a chunk of its own; never n (4 GiB).

    Two threads that share the head in stages keep about three times as much as one; with momentum,
    they also have the sums of each panel of columns for some blocks of √n tokens.
    """
    values = gates + ["n, 0.5"] * name.endswith("delta")
    operands = ", ".join(f'np.full({x}, "f4")' for x in values)
    stdout, _ = interpreter(GRADIENTS.format(name=name, operands=operands))
    assert float(stdout) <= mebibytes


FLAT = """
import ctypes, gc, sys
from every_call import every_call
import linattn

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def used():
    gc.collect()
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd + 512 * sys.getallocatedblocks()

linattn.set_num_threads(2)
grown = {{}}
for call in every_call(20, 6, 7):
    for _ in range(20):
        call.run()
    before = used()
    for _ in range({count}):
        call.run()
    grown.setdefault(call.name, []).append(used() - before)
print(max(max(x) for x in grown.values()), grown)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_stays_flat(interpreter):
    """Nothing of a call is kept, by any function: a small object would be 32 bytes."""
    count = int(os.environ.get("LINATTN_CALLS", "500"))
    stdout, _ = interpreter(FLAT.format(count=count), timeout=3600)
    assert int(stdout.split()[0]) < 16 * count, stdout
