"""Gradients of the delta rule: complex steps, and the memory they take."""

import sys

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, close, roundings
from cases import delta_case, make

import linattn
from linattn.reference import delta_rule as ref

STEP = 1e-30
ROUNDINGS = 2 * DELTA_ROUNDINGS  # of the kernel, and of the twin in the same dtype
CHANNELS = pytest.mark.parametrize("channels", [False, True])


def directional(operands, directions, options):
    """Derivative of the forward twin along `directions`, by one complex step."""
    moved = [x + 1j * STEP * t for x, t in zip(operands, directions, strict=True)]
    return ref.delta(*moved, **options).imag / STEP


def test_one_number_for_all_channels():
    """beta (..., n, 1), and with leading axes that the others lack: in kernel and twin alike."""
    case = delta_case(7, 3, 4, (2,), False, "elu", "float64")
    q, k, v, beta, g = make(case)
    alone = ref.delta_backward(q, k, v, beta, g, feature_map="elu")
    for one in (beta[..., None], np.stack([beta, 2 * beta])[..., None], beta[:1, :, None]):
        wide = np.broadcast_to(g, (*one.shape[:-3], 2, 7, 4))
        options = {"feature_map": "elu"}
        grads = linattn.delta_backward(q, k, v, one, wide, **options)
        expected = ref.delta_backward(q, k, v, one, wide, **options)
        for x, y in zip(grads, expected, strict=True):
            assert x.shape == y.shape
            close(x, y, atol=1e-12 * abs(y).max(), rtol=1e-12)
        if one.shape[:-1] == beta.shape:
            np.testing.assert_array_equal(expected[3][..., 0], alone[3])


@CHANNELS
def test_every_entry_by_complex_step(channels):
    case = delta_case(6, 3, 2, (), channels, "elu", "float64")
    *operands, g = make(case)
    grads = linattn.delta_backward(*operands, g, **case.options)
    for which, grad in enumerate(grads):
        for index in np.ndindex(grad.shape):
            directions = [np.zeros(x.shape) for x in operands]
            directions[which][index] = 1
            jt = directional(operands, directions, case.options)
            close(grad[index], (g * jt).sum(), atol=roundings(ROUNDINGS, *grads))


@CHANNELS
def test_states_by_complex_step(channels):
    """The initial state's gradient, and that of a loss on the final state."""
    rng = np.random.default_rng(3)
    case = delta_case(21, 4, 3, (), channels, dtype="float64")
    *operands, g = make(case)
    s, last = rng.standard_normal((2, 4, 3))
    *_, ds = linattn.delta_backward(
        *operands, g, **case.options,
        initial_state=linattn.State(s), grad_state=linattn.State(last),
    )  # fmt: skip
    for index in np.ndindex(s.shape):
        moved = s.astype(complex)
        moved[index] += 1j * STEP
        o, end = ref.delta(
            *operands, **case.options, initial_state=linattn.State(moved, None), return_state=True
        )
        slope = ((g * o).sum() + (last * end.s).sum()).imag / STEP
        close(ds.s[index], slope, atol=roundings(ROUNDINGS, ds.s))


def test_zero_strength():
    """Where nothing is written the error at the key still is beta's gradient."""
    case = delta_case(40, 5, 4, dtype="float64")
    q, k, v, beta, g = make(case)
    beta[::3] = 0
    grads = linattn.delta_backward(q, k, v, beta, g, **case.options)
    twin = ref.delta_backward(q, k, v, beta, g, **case.options)
    assert grads[3][::3].all()
    for x, y in zip(grads, twin, strict=True):
        close(x, y, atol=roundings(ROUNDINGS, *twin))


SCRIPT = """
import resource, sys
import linattn, numpy as np

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

n, d = 2**18, 64
q, v, g = (np.full((n, d), 0.125, "f4") for _ in range(3))
beta = np.full(n, 0.5, "f4")
few = slice(3000)
linattn.delta_backward(q[few], q[few], v[few], beta[few], g[few])
before = peak()
result = linattn.delta_backward(q, q, v, beta, g)
print((peak() - before - sum(x.nbytes for x in result)) / 2**20)
"""


GARBAGE = """
import linattn, numpy as np
from bounds import check_delta
from cases import DELTA_SIZES, delta_case
for n, d, m in DELTA_SIZES[::4]:
    for channels in (False, True):
        for isa in linattn._core.settings.available_isas():
            linattn.set_isa(isa)
            np.full(2**22, np.nan)  # freed at once, and the next to be handed out
            check_delta(linattn, delta_case(n, d, m, channels=channels))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
def test_scratch_is_written_before_it_is_read(interpreter):
    """Fresh memory is zeros too often to notice; here it is NaN, which even times 0 shows."""
    large = str(2**30)  # never fresh pages from the system, never any handed back
    interpreter(GARBAGE, MALLOC_MMAP_THRESHOLD_=large, MALLOC_TRIM_THRESHOLD_=large)


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
def test_memory(interpreter):
    """The square root of the chunks, not the states of all tokens, nor of all chunks (256 MiB)."""
    stdout, _ = interpreter(SCRIPT)
    assert float(stdout) <= 8
