"""The gufuncs of selective_scan against their twins: sizes, layouts, dtypes, sequences, threads.

Where the same holds for linear_scan it is tested beside.
"""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from scan_calls import (
    GRADIENTS,
    LAYOUTS,
    NAMES,
    UNIT,
    assert_within,
    backward,
    central,
    close,
    forward,
    one_sequence,
    operands,
    options,
    roundings,
    twin,
    twin_backward,
    wide,
)

import linattn
from linattn._core.gufuncs import ufuncs
from linattn.reference import scan as ref

SIZES = [
    (0, 3, 2), (1, 1, 1), (2, 17, 3), (5, 4, 0), (5, 0, 3), (31, 16, 16), (32, 15, 5),
    (33, 70, 40), (70, 140, 4), (200, 3, 17), (130, 33, 8),
]  # fmt: skip


@pytest.mark.parametrize("softplus", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m", "f"), SIZES)
def test_selective_scan(n, m, f, dtype, softplus):
    arrays = operands(n, m, f, dtype)
    y, s = forward(one_sequence(arrays), softplus)
    assert y.dtype == s.dtype == dtype
    bounds = roundings(arrays, softplus)
    for result, expected, bound in zip((y, s[0]), twin(arrays, softplus), bounds, strict=True):
        assert_within(result, expected, UNIT[dtype] * bound + 1e-300)


@pytest.mark.parametrize("softplus", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m", "f"), SIZES)
def test_selective_scan_backward(n, m, f, dtype, softplus):
    """Roundings of a sum over tokens, states or channels, of numbers that do not cancel."""
    arrays = operands(n, m, f, dtype)
    grads = backward(one_sequence(arrays), softplus)
    expected = twin_backward(arrays, softplus)
    positive = {key: x if key in ("A", "z") else np.abs(x) for key, x in arrays.items()}
    sizes = twin_backward(positive | {"z": np.abs(arrays["z"])}, softplus)
    sizes["ddt"] = sizes["ddt_bias"] = np.concatenate(
        [*(sizes[key].ravel() for key in ("ddt", "ddt_bias", "dx", "dA")), [1.0]]
    )
    for key, x in grads.items():
        x = x[0] if key in ("dA", "dD", "ddt_bias", "ds0") else x
        assert x.dtype == dtype
        close(x, expected[key], 8 * (n + m + f + 4), UNIT[dtype], sizes[key])


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


@pytest.mark.parametrize("softplus", [0.0, 1.0])
def test_gradients_by_differences(softplus):
    arrays = operands(5, 3, 2)

    def loss():
        y, s = forward(one_sequence(arrays), softplus)
        return (y * arrays["grad_out"]).sum() + (s[0] * arrays["grad_s"]).sum()

    grads = backward(one_sequence(arrays), softplus)
    for key in (*NAMES, "s0"):
        expected = central(loss, arrays[key])
        close(grads["d" + key].reshape(expected.shape), expected, 1, 1e-8, np.append(expected, 1.0))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_layouts(name, dtype):
    """No bit depends on strides."""
    arrays = one_sequence(operands(45, 150, 5, dtype))
    half = dtype == "float16"
    arrays |= {key: arrays[key].astype("f4") for key in ("s0", "grad_s") if half}
    moved = {key: LAYOUTS[name](x) for key, x in arrays.items()}
    out = LAYOUTS[name](np.zeros_like(arrays["x"]))
    for x, y in zip(forward(arrays), forward(moved), strict=True):
        np.testing.assert_array_equal(x, y)
    for key, x in backward(arrays).items():
        np.testing.assert_array_equal(x, backward(moved)[key], err_msg=key)
    given = [moved[key] for key in NAMES if key != "z"]
    assert ufuncs["selective_scan_D_dt_bias"](*given, 0.0, out=out) is out
    np.testing.assert_array_equal(out, ufuncs["selective_scan_D_dt_bias"](*given, 0.0))
    a, x = arrays["dt"], arrays["x"]
    h = ufuncs["linear_scan"](a, x, 0.0, 0.0)
    assert ufuncs["linear_scan"](moved["dt"], moved["x"], 0.0, 0.0, out=out) is out
    np.testing.assert_array_equal(h, out)
    grads = ufuncs["linear_scan_backward"](a, x, arrays["grad_out"], 1.0, 0.0)
    again = ufuncs["linear_scan_backward"](moved["dt"], moved["x"], moved["grad_out"], 1.0, 0.0)
    for x, y in zip(grads, again, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits(dtype):
    """Computed in float32, rounded once; sums over tokens and states stay float32."""
    arrays = one_sequence(operands(40, 37, 16, dtype))
    kept = ("A", "D", "dt_bias", "s0", "grad_s")
    arrays |= {key: arrays[key].astype("f4") for key in kept}
    single = {key: x.astype("f4") for key, x in arrays.items()}
    y, s = forward(arrays)
    grads, expected = backward(arrays), backward(single)
    for key, x in [("y", y), ("s", s), *grads.items()]:
        sums = key in ("s", "dA", "dD", "ddt_bias", "ds0")
        assert x.dtype == (np.float32 if sums else dtype), key
        other = dict(zip("ys", forward(single), strict=True)) | expected
        np.testing.assert_array_equal(x, other[key].astype(x.dtype), err_msg=key)


@pytest.mark.parametrize("m", [3, 200])
def test_packed_sequences(m):
    """Each is what it is alone, and empty ones hand their state through."""
    n, f, cuts = 90, 6, np.array([0, 1, 1, 40, 77, 77, 90])
    arrays = operands(n, m, f)
    rng = np.random.default_rng(3)
    states = {key: rng.standard_normal((len(cuts) - 1, m, f)) for key in ("s0", "grad_s")}
    keys = np.array([1, 0, 20, 37, 0, 5])
    y, s = forward(arrays | states, 1.0, cuts, keys)
    grads = backward(arrays | states, 1.0, cuts, keys)
    tokens = ("x", "dt", "B", "C", "z", "grad_out")
    for r, (begin, end) in enumerate(pairwise(cuts)):
        alone = {key: x[begin:end] if key in tokens else x for key, x in arrays.items()}
        alone |= {key: states[key][r : r + 1] for key in states}
        for x, expected in zip(
            (y[begin:end], s[r : r + 1]), forward(alone, 1.0, keys=keys[r : r + 1]), strict=True
        ):
            np.testing.assert_array_equal(x, expected)
        for key, expected in backward(alone, 1.0, keys=keys[r : r + 1]).items():
            sums = key in ("dA", "dD", "ddt_bias", "ds0")
            part = grads[key][r : r + 1] if sums else grads[key][begin:end]
            np.testing.assert_array_equal(part, expected, err_msg=key)
        alone = wide(alone) | {key: states[key][r] for key in states}
        shown = ref.selective_scan(
            *(alone[key] for key in NAMES[:5]), **options(alone, 1.0), key_lengths=keys[r],
            initial_state=alone["s0"], return_state=True,
        )  # fmt: skip
        for x, expected in zip((y[begin:end], s[r]), shown, strict=True):
            close(x, expected, 1e3, UNIT["float64"])
        shown = ref.selective_scan_backward(
            *(alone[key] for key in NAMES[:5]), alone["grad_out"], **options(alone, 1.0),
            key_lengths=keys[r], initial_state=alone["s0"], grad_state=alone["grad_s"],
        )  # fmt: skip
        for key, expected in zip(GRADIENTS, shown, strict=True):
            sums = key in ("dA", "dD", "ddt_bias", "ds0")
            part = grads[key][r] if sums else grads[key][begin:end]
            close(part, expected, 1e3, UNIT["float64"], np.append(expected, 1.0))


def test_padding_does_not_leak():
    """Past the last key nothing of dt and B is read, and x is not but for D x."""
    arrays = one_sequence(operands(50, 20, 5))
    arrays["D"] = np.zeros_like(arrays["D"])
    keys = np.array([23])
    bad = {key: arrays[key].copy() for key in ("x", "dt", "B")}
    for x in bad.values():
        x[23:] = np.nan
    for x, expected in zip(
        forward(arrays | bad, 1.0, keys=keys), forward(arrays, 1.0, keys=keys), strict=True
    ):
        np.testing.assert_array_equal(x, expected)
    expected = backward(arrays, 1.0, keys=keys)
    for key, x in backward(arrays | bad, 1.0, keys=keys).items():
        if key != "dD":
            np.testing.assert_array_equal(x, expected[key], err_msg=key)
    for key in ("dx", "ddt", "dB"):
        assert not expected[key][23:].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 31, 32, 49])
def test_causality(bad, at):
    """No bit of a row depends on later tokens."""
    arrays = one_sequence(operands(50, 20, 5, "float32"))
    expected = forward(arrays)[0]
    later = {key: arrays[key].copy() for key in ("x", "dt", "B", "C", "z")}
    for x in later.values():
        x[at:] = bad
    np.testing.assert_array_equal(forward(arrays | later)[0][:at], expected[:at])
    a, x = later["dt"], later["x"]
    h = ufuncs["linear_scan"](arrays["dt"], arrays["x"], 0.0, 0.0)
    np.testing.assert_array_equal(ufuncs["linear_scan"](a, x, 0.0, 0.0)[:at], h[:at])


def test_threads():
    """Panels of channels have the bits of the whole."""
    arrays = one_sequence(operands(300, 400, 16, "float32"))
    lead = {key: np.stack([x, 2 * x]) for key, x in arrays.items() if key not in ("s0", "grad_s")}
    results = []
    before = linattn.get_num_threads()
    try:
        for threads in (1, 2, 3, 5):
            linattn.set_num_threads(threads)
            results.append([*forward(arrays), *backward(arrays | lead).values()])
            results[-1].append(ufuncs["linear_scan"](arrays["dt"], arrays["x"], 0.0, 0.0))
            results[-1].extend(
                ufuncs["linear_scan_backward"](arrays["dt"], arrays["x"], arrays["z"], 1.0, 0.0)
            )
    finally:
        linattn.set_num_threads(before)
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("cut", [0, 1, 32, 44, 50])
def test_a_cut_anywhere(cut):
    """Resumed from its state, forward has the same bits; gradients agree."""
    arrays = one_sequence(operands(50, 20, 5))
    tokens = ("x", "dt", "B", "C", "z", "grad_out")
    early, late = (
        {key: x[part] if key in tokens else x for key, x in arrays.items()}
        for part in (slice(cut), slice(cut, None))
    )
    y, s = forward(arrays)
    y0, middle = forward(early)
    y1, last = forward(late | {"s0": middle})
    np.testing.assert_array_equal(np.concatenate([y0, y1]), y)
    np.testing.assert_array_equal(last, s)
    grads, second = backward(arrays), backward(late | {"s0": middle})
    first = backward(early | {"grad_s": second["ds0"]})
    for key, x in grads.items():
        if key == "ds0":
            joined = first[key]
        elif key in ("dA", "dD", "ddt_bias"):
            joined = first[key] + second[key]
        else:
            joined = np.concatenate([first[key], second[key]])
        close(joined, x, 500, UNIT["float64"])


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
