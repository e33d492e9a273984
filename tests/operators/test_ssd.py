"""ssd alone: what it is made of, and tokens without a key."""

import numpy as np
import pytest
from bounds import close, roundings
from states import flat
from table import CASES

import linattn

SSD = [x for x in CASES if x.name == "ssd"]
(SKIPS,) = (x for x in SSD if "D" in x.letters)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_gated_and_a_skip(dtype):
    """Values times their strengths, and D times the values."""
    x = SKIPS.operands((2,), 150, d=6, m=9, dtype=dtype)
    written, skip = x["strength"][..., None] * x["v"], x["D"][..., None, :] * x["v"]
    expected = linattn.gated(x["q"], x["k"], written, x["g"], **SKIPS.options) + skip
    close(SKIPS.call(x), expected, roundings(32, expected, dtype=dtype))


def test_a_token_without_a_key_has_no_value():
    """It is not let through either, whatever it holds, and D gets no gradient of it."""
    keys = 20
    x = SKIPS.operands((), 37, d=6, m=9)
    few = SKIPS.tokens(x, 0, keys)
    x["v"][keys:] = np.nan
    o = SKIPS.forward(x, key_lengths=keys, return_state=False)
    np.testing.assert_array_equal(o[:keys], SKIPS.forward(few, return_state=False))
    assert np.isfinite(o).all()
    x["grad_out"][keys:] = 0
    grads = flat(SKIPS.backward(x, key_lengths=keys))
    for found, expected in zip(grads, flat(SKIPS.backward(few)), strict=True):
        close(found[: len(expected)], expected, roundings(32, *grads, dtype="float32"))


def test_float32_strengths_do_not_widen_tokens():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = {y: z.astype(ml_dtypes.bfloat16) for y, z in SKIPS.operands((), 9, d=4, m=3).items()}
    x |= {y: x[y].astype("f4") for y in ("g", "strength", "D")}
    assert SKIPS.call(x).dtype == ml_dtypes.bfloat16
