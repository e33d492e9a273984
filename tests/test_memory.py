"""Memory beyond the arrays: the state of each thread, whatever the length; no hidden copy."""

import sys

import pytest

SCRIPT = """
import resource, sys
import linattn, numpy as np
MIB = 2**20

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

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
@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize(
    ("operator", "mebibytes"),
    [("causal", 8), ("noncausal", 8), ("causal_backward", 12), ("noncausal_backward", 12)],
)
def test_beyond_the_arrays(interpreter, operator, token_major, mebibytes):
    """Each array has 32 MiB here: a copy of any would show."""
    backward = operator.endswith("backward")
    script = SCRIPT.format(
        operator=operator, token_major=token_major, n=2**16,
        count=4 if backward else 3, last="g" if backward else "out=o",
    )  # fmt: skip
    stdout, _ = interpreter(script)
    assert float(stdout) <= mebibytes
