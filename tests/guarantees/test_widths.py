"""Widths that are no multiple of a vector: rows and tiles that end within one."""

import numpy as np
import pytest
from every_call import every_call
from isas import ISAS
from layouts import LAYOUTS
from states import flat

import linattn
from linattn import State

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16

DTYPES = [np.float32, np.float64, np.float16, bfloat16]
WIDTHS = [*range(1, 19), 23, 31, 33]
#: By rows with NaN beside them, by columns, and neither.
SOME_LAYOUTS = ["padded_rows", "features_first", "all_backwards"]

across_sets = pytest.mark.parametrize("name", ISAS)
across_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["f4", "f8", "f2", "bf16"])


def laid(x, layout):
    matrix = isinstance(x, np.ndarray) and x.ndim >= 2 and x.dtype.kind not in "biu"
    return LAYOUTS[layout](x) if matrix else x


@across_sets
@across_dtypes
def test_every_operator_in_any_layout(isa, name, dtype):
    """The same bits, whatever lies beside the numbers."""
    isa(name)
    for d, m in ((3, 7), (9, 17)):
        for call in every_call(19, d, m, dtype=dtype):
            given = {x: y for x, y in call.options.items() if x not in ("out", "in_place")}
            expected = call._replace(options=given).results()
            for layout in SOME_LAYOUTS:
                operands = tuple(laid(x, layout) for x in call.operands)
                options = {x: laid(y, layout) for x, y in given.items()}
                results = call._replace(operands=operands, options=options).results()
                for x, y in zip(results, expected, strict=True):
                    np.testing.assert_array_equal(x, y, err_msg=f"{call.name} {layout}")


@across_sets
@across_dtypes
def test_every_width_in_any_layout(isa, name, dtype):
    """Operands and results; what lies beside a result stays as it was."""
    isa(name)
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        q, k, v, g = rng.standard_normal((4, 2, 21, width)).astype(dtype)
        forward = linattn.causal(q, k, v)
        backward = linattn.causal_backward(q, k, v, g)
        for layout in SOME_LAYOUTS:
            operands = [LAYOUTS[layout](x) for x in (q, k, v, g)]
            outs = [LAYOUTS[layout](np.zeros_like(x)) for x in (v, q, k, v)]
            before = [flat_memory(x).copy() for x in outs]
            linattn.causal(*operands[:3], out=outs[0])
            linattn.ufuncs.causal_backward_elu(*operands, 1.0, 1e-6, out=tuple(outs[1:]))
            for out, x, memory in zip(outs, (forward, *backward), before, strict=True):
                np.testing.assert_array_equal(out, x, err_msg=f"{layout} {width}")
                out[...] = 0
                assert flat_memory(out).tobytes() == memory.tobytes()


def flat_memory(x):
    """All of the array that x is a view of."""
    while x.base is not None:
        x = x.base
    return x


@across_sets
@across_dtypes
def test_as_if_padded(isa, name, dtype):
    """Columns of zeros add nothing to any sum, so that part of a vector has the bits of a whole."""
    isa(name)
    rng = np.random.default_rng(0)
    options = {"feature_map": "identity", "normalize": False}
    for width in WIDTHS:
        operands = rng.standard_normal((4, 2, 21, width)).astype(dtype)
        padded = np.zeros((4, 2, 21, -(-width // 16) * 16), dtype)
        padded[..., :width] = operands
        for operator, count in (("causal", 3), ("noncausal", 3), ("causal_backward", 4)):
            f = getattr(linattn, operator)
            some, whole = f(*operands[:count], **options), f(*padded[:count], **options)
            for x, y in zip(flat(some), flat(whole), strict=True):
                np.testing.assert_array_equal(x, y[..., :width], err_msg=f"{operator} {width}")


@across_sets
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operator", ["step", "delta_step", "gated_step", "gated_delta_step"])
def test_steps_of_any_width(isa, name, dtype, operator):
    """By rows a state is updated by vectors, the last of them in part; by columns one by one."""
    isa(name)
    rng = np.random.default_rng(0)
    numbers = {"step": 0, "delta_step": 1, "gated_step": 1, "gated_delta_step": 2}[operator]
    for width in WIDTHS:
        q, k, v = rng.standard_normal((3, 2, width)).astype(dtype)
        rates = [-rng.random(2).astype(dtype) for _ in range(numbers)]
        start = State(
            *(rng.standard_normal(x).astype(dtype) for x in ((2, width, width), (2, width)))
        )
        start = start if operator == "step" else State(start.s)
        f = getattr(linattn, operator)
        o, state = f(q, k, v, *rates, start)
        for layout in ("padded_rows", "features_first", "all_backwards"):
            memory = LAYOUTS[layout](start.s.copy())
            around = flat_memory(memory).copy()
            here = State(memory, start.z if start.z is None else start.z.copy())
            result, after = f(q, k, v, *rates, here, in_place=True)
            np.testing.assert_array_equal(result, o, err_msg=f"{layout} {width}")
            for x, y in zip(flat(after), flat(state), strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"{layout} {width}")
            memory[...] = start.s
            assert flat_memory(memory).tobytes() == around.tobytes()
