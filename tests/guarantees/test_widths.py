"""Widths that are no multiple of a vector: rows and tiles that end within one."""

import numpy as np
import pytest
from every_call import every_call
from isas import ISAS
from layouts import LAYOUTS
from states import assert_same, flat
from table import ATTENTION, apply, first_of

import linattn

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16

DTYPES = [np.float32, np.float64, np.float16, bfloat16]
WIDTHS = [*range(1, 19), 23, 31, 33]
#: By rows with NaN beside them, by columns in either order, and neither.
SOME_LAYOUTS = ["padded_rows", "features_first", "features_first_backwards", "all_backwards"]

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
                assert_same(results, expected, f"{call.name} {layout}")


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
@pytest.mark.parametrize("case", first_of(ATTENTION), ids=str)
def test_steps_of_any_width(isa, name, dtype, case):
    """By rows a state is updated by vectors, the last of them in part; by columns one by one."""
    isa(name)
    for width in WIDTHS:
        sizes = {"d": width, "m": width, "dtype": dtype}
        operands, start = case.operands((2,), 1, **sizes), case.state((2,), **sizes)
        expected = case.one_step(operands, 0, start)
        for layout in SOME_LAYOUTS:
            here = apply(np.copy, start)._replace(s=LAYOUTS[layout](start.s.copy()))
            around = flat_memory(here.s).copy()
            result = case.one_step(operands, 0, here, in_place=True)
            assert_same(result, expected, f"{layout} {width}")
            here.s[...] = start.s
            assert flat_memory(here.s).tobytes() == around.tobytes()
