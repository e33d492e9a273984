"""The gufuncs of selective_scan against their twins: sizes, layouts, dtypes, sequences, threads.

Where the same holds for linear_scan it is tested beside.
"""

import numpy as np
import pytest
from scan_calls import (
    GRADIENTS,
    LAYOUTS,
    NAMES,
    UNIT,
    assert_within,
    backward,
    forward,
    one_sequence,
    operands,
)

from linattn._core.gufuncs import ufuncs


def test_without_a_gate():
    """The silu of a large gate is that gate, so that the outputs are proportional."""
    arrays = one_sequence(operands(37, 21, 16))
    plain, state = forward(arrays, gate=False)
    gated, same = forward(arrays | {"z": np.full((37, 21), 64.0)})
    np.testing.assert_array_equal(64 * plain, gated)
    np.testing.assert_array_equal(state, same)
    given = [arrays[key] for key in NAMES if key != "z"]
    np.testing.assert_array_equal(
        ufuncs["selective_scan_D_dt_bias"](*given, 0.0),
        forward(arrays | {"s0": 0 * arrays["s0"]}, gate=False)[0],
    )
    plain = ufuncs["selective_scan_D_dt_bias_backward"](*given, 64 * arrays["grad_out"], 0.0)
    still = backward(
        arrays | {"z": np.full((37, 21), 64.0)}
        | {key: 0 * arrays[key] for key in ("s0", "grad_s")}
    )  # fmt: skip
    for x, key in zip(plain, [key for key in GRADIENTS if key not in ("dz", "ds0")], strict=True):
        np.testing.assert_array_equal(x.ravel(), still[key].ravel(), err_msg=key)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("f", [1, 5, 16, 40])
def test_steps(f, dtype):
    """One token after another: states have the bits of the scan, outputs sums in another order."""
    arrays = operands(9, 37, f, dtype)
    y, s = forward(one_sequence(arrays), 1.0)
    state, place = arrays["s0"], arrays["s0"].copy()
    in_place = ufuncs["_selective_scan_D_gate_dt_bias_step"]
    for i in range(9):
        token = [arrays[key] if key in ("A", "D", "dt_bias") else arrays[key][i] for key in NAMES]
        out, state = ufuncs["selective_scan_D_gate_dt_bias_step"](*token, 1.0, state)
        read = (np.abs(arrays["C"][i] * state)).sum(-1) + np.abs(arrays["D"] * arrays["x"][i])
        assert_within(out, y[i], 2 * (f + 4) * UNIT[dtype] * read * np.abs(arrays["z"][i]))
        in_place(*token, 1.0, out=(None, place))
        np.testing.assert_array_equal(place, state)
    np.testing.assert_array_equal(state, s[0])
    expected = ufuncs["selective_scan_D_gate_dt_bias_step"](*token, 1.0, arrays["s0"])
    for layout in LAYOUTS.values():
        *moved, s0 = (layout(x) for x in (*token, arrays["s0"]))
        result = ufuncs["selective_scan_D_gate_dt_bias_step"](*moved, 1.0, s0)
        for x, same in zip(result, expected, strict=True):
            np.testing.assert_array_equal(x, same)


@pytest.mark.parametrize("f", [5, 16])
def test_step_of_what_may_be_left_out(f):
    """D and the bias of the time step are zeros then."""
    arrays = operands(1, 37, f)
    token = [arrays[key] if key == "A" else arrays[key][0] for key in NAMES[:5]]
    zeros = np.zeros(37)
    plain = ufuncs["selective_scan_step"](*token, 1.0, arrays["s0"])
    given = ufuncs["selective_scan_D_dt_bias_step"](*token, zeros, zeros, 1.0, arrays["s0"])
    for x, expected in zip(plain, given, strict=True):
        np.testing.assert_array_equal(x, expected)


def test_groups_of_channels():
    """They share B and C, and are a leading axis."""
    arrays = one_sequence(operands(40, 24, 5))
    y = forward(arrays)[0]
    groups = {key: arrays[key].reshape(40, 2, 12).swapaxes(0, 1) for key in ("x", "dt", "z")} | {
        key: arrays[key].reshape(2, 12) for key in ("D", "dt_bias")
    }
    groups |= {"A": arrays["A"].reshape(2, 12, 5), "s0": arrays["s0"].reshape(2, 1, 12, 5)}
    np.testing.assert_array_equal(forward(arrays | groups)[0].swapaxes(0, 1).reshape(40, 24), y)


def test_infinite_inputs():
    """No padding takes part in sums, whatever the number of states: it would make them NaN."""
    for f in (1, 2, 3, 5, 7, 16):
        arrays = one_sequence(operands(9, 5, f))
        arrays |= {key: np.abs(arrays[key]) for key in ("x", "B", "C", "D", "z", "s0")}
        arrays["x"][4, 2] = np.inf
        y, s = forward(arrays)
        expected = np.zeros((9, 5), bool)
        expected[4:, 2] = True
        np.testing.assert_array_equal(y == np.inf, expected)
        assert np.isfinite(y[~expected]).all() and not np.isnan(s).any()
        assert np.isfinite(s[0, [0, 1, 3, 4]]).all()
        grads = backward(arrays)
        for key in ("dz", "dx"):
            assert not np.isnan(grads[key]).any(), key
        token = [arrays[key] if key in ("A", "D", "dt_bias") else arrays[key][4] for key in NAMES]
        out, _ = ufuncs["selective_scan_D_gate_dt_bias_step"](*token, 0.0, arrays["s0"][0])
        np.testing.assert_array_equal(out == np.inf, expected[4])
