"""The gufuncs of the scans against their twins: sizes, layouts, dtypes, sequences, threads."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import linattn
from linattn import _reference_scan as ref
from linattn._gufuncs import ufuncs

SIZES = [
    (0, 3, 2), (1, 1, 1), (2, 17, 3), (5, 4, 0), (5, 0, 3), (31, 16, 16), (32, 15, 5),
    (33, 70, 40), (70, 140, 4), (200, 3, 17), (130, 33, 8),
]  # fmt: skip
NAMES = ["x", "dt", "A", "B", "C", "D", "z", "dt_bias"]
GRADIENTS = ["dx", "ddt", "dA", "dB", "dC", "dD", "dz", "ddt_bias", "ds0"]
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}


def operands(n, m, f, dtype="float64", lead=(), seed=0):
    """Time steps and rates as models have them, and states and cotangents."""
    rng = np.random.default_rng([n, m, f, seed])
    shapes = {
        "x": (n, m), "dt": (n, m), "A": (m, f), "B": (n, f), "C": (n, f), "D": (m,), "z": (n, m),
        "dt_bias": (m,), "s0": (m, f), "grad_out": (n, m), "grad_s": (m, f),
    }  # fmt: skip
    arrays = {key: rng.standard_normal(lead + shape) for key, shape in shapes.items()}
    arrays["A"] = -np.exp(arrays["A"])
    for key in ("dt", "dt_bias"):
        arrays[key] = 0.2 * np.abs(arrays[key])
    return {key: x.astype(dtype) for key, x in arrays.items()}


def whole(x):
    """As a state of the only sequence."""
    return x[..., None, :] if x.ndim == 1 else np.expand_dims(x, -3)


def forward(arrays, softplus=0.0, cuts=None, keys=None, gate=True):
    """y and the states after the sequences, which are one if there are no cuts."""
    n = arrays["x"].shape[-2]
    cuts = np.array([0, n]) if cuts is None else cuts
    keys = np.diff(cuts) if keys is None else keys
    given = [arrays[key] for key in NAMES if gate or key != "z"]
    f = (
        ufuncs["selective_scan_D_gate_dt_bias_state"]
        if gate
        else ufuncs["selective_scan_D_dt_bias_state"]
    )
    return f(*given, softplus, cuts[:-1], cuts[1:], keys, arrays["s0"])


def backward(arrays, softplus=0.0, cuts=None, keys=None):
    n = arrays["x"].shape[-2]
    cuts = np.array([0, n]) if cuts is None else cuts
    keys = np.diff(cuts) if keys is None else keys
    grads = ufuncs["selective_scan_D_gate_dt_bias_state_backward"](
        *(arrays[key] for key in NAMES), arrays["grad_out"], softplus, cuts[:-1], cuts[1:], keys,
        arrays["s0"], arrays["grad_s"],
    )  # fmt: skip
    return dict(zip(GRADIENTS, grads, strict=True))


def one_sequence(arrays):
    return arrays | {key: whole(arrays[key]) for key in ("s0", "grad_s")}


def wide(arrays):
    return {key: x.astype("f8") for key, x in arrays.items()}


def options(arrays, softplus=0.0):
    return {
        "D": arrays["D"], "z": arrays["z"], "dt_bias": arrays["dt_bias"],
        "softplus": bool(softplus),
    }  # fmt: skip


def twin(arrays, softplus=0.0):
    w = wide(arrays)
    return ref.selective_scan(
        *(w[key] for key in NAMES[:5]), **options(w, softplus), initial_state=w["s0"],
        return_state=True,
    )  # fmt: skip


def twin_backward(arrays, softplus=0.0):
    w = wide(arrays)
    grads = ref.selective_scan_backward(
        *(w[key] for key in NAMES[:5]), w["grad_out"], **options(w, softplus),
        initial_state=w["s0"], grad_state=w["grad_s"],
    )  # fmt: skip
    return dict(zip(GRADIENTS, grads, strict=True))


def roundings(arrays, softplus=0.0):
    """How many units in the last place y and the state may be off, times their sizes.

    The error of a state decays as it does; a token adds its own: of the decay, whose exponent
    dt A is off by 3 roundings of itself and more with softplus, and of two products and a sum.
    """
    w = wide(arrays)
    raw = w["dt"] + w["dt_bias"]
    dt = np.logaddexp(0, raw) if softplus else raw
    n, m, f = *dt.shape, w["A"].shape[-1]
    size, error = np.abs(w["s0"]), np.zeros((m, f))
    y = np.zeros((n, m))
    for i in range(n):
        t = dt[i, :, None] * w["A"]
        more = np.abs(dt[i] * w["x"][i])[:, None] * np.abs(w["B"][i])
        size = np.exp(t) * size + more
        error = np.exp(t) * error + (5 + 8 * np.abs(t)) * size + 8 * more
        read = (np.abs(w["C"][i]) * (error + (f + 2) * size)).sum(-1)
        gate = w["z"][i] / (1 + np.exp(-w["z"][i]))
        y[i] = (read + (f + 4) * np.abs(w["D"] * w["x"][i])) * np.abs(gate)
    return 1.5 * y, error


def assert_within(result, expected, bound):
    assert result.shape == expected.shape
    assert (np.abs(result - expected) <= bound).all(), np.abs(result - expected).max(initial=0)


def close(result, expected, units, unit, size=None):
    """Within so many units of the largest number of `size`, or of what is expected."""
    size = np.abs(expected if size is None else size).max(initial=0)
    assert_within(result, expected, units * unit * max(size, 1e-30))


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


def central(f, x, h=1e-5):
    """Derivatives of f with respect to each number of x, which f reads in place."""
    grad = np.empty_like(x)
    for i in np.ndindex(x.shape):
        old = x[i]
        x[i] = old + h
        up = f()
        x[i] = old - h
        grad[i] = (up - f()) / (2 * h)
        x[i] = old
    return grad


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


LAYOUTS = {
    "columns": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2) if x.ndim > 1 else x,
    "spread": lambda x: np.repeat(x, 3, -1)[..., ::3],
    "negative": lambda x: x[..., ::-1].copy()[..., ::-1],
    "rows back": lambda x: x[::-1].copy()[::-1],
    "wide rows": lambda x: np.concatenate([x, x], -1)[..., : x.shape[-1]],
}


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
    """Past the last key nothing of x, dt and B is read."""
    arrays = one_sequence(operands(50, 20, 5))
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
    turned = [x.T.copy().T if x.shape == (37, f) else x for x in (*token, arrays["s0"])]
    expected = ufuncs["selective_scan_D_gate_dt_bias_step"](*token, 1.0, arrays["s0"])
    out, state = ufuncs["selective_scan_D_gate_dt_bias_step"](*turned[:-1], 1.0, turned[-1])
    np.testing.assert_array_equal(state, expected[1])
    assert_within(out, expected[0], 1e3 * UNIT[dtype] * np.abs(out).max())
    if f == 1:  # a stride along one number is none
        spread = [np.repeat(x, 2, -1)[..., ::2] for x in (*token, arrays["s0"])]
        out, _ = ufuncs["selective_scan_D_gate_dt_bias_step"](*spread[:-1], 1.0, spread[-1])
        np.testing.assert_array_equal(out, expected[0])


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


@pytest.mark.parametrize("log", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linear_scan(dtype, log):
    """Sizes that lie as blocks and others; gradients, states, steps."""
    rng = np.random.default_rng(0)
    for n, m in [(0, 3), (1, 1), (5, 0), (31, 16), (33, 70), (200, 64), (90, 150), (200, 3)]:
        a = rng.uniform(-1, 0.1 if log else 1, (n, m)).astype(dtype)
        x, g = (rng.standard_normal((n, m)).astype(dtype) for _ in range(2))
        s0, gs = (rng.standard_normal((1, m)).astype(dtype) for _ in range(2))
        bounds = [0], [n]
        result = ufuncs["linear_scan_state"](a, x, log, 0.0, *bounds, s0)
        result += ufuncs["linear_scan_state_backward"](a, x, g, log, 0.0, *bounds, s0, gs)
        w = [y.astype("f8") for y in (a, x)]
        expected = ref.linear_scan(
            *w, log=bool(log), initial_state=s0[0].astype("f8"), return_state=True
        )
        expected += ref.linear_scan_backward(
            *w, g.astype("f8"), log=bool(log), initial_state=s0[0].astype("f8"),
            grad_state=gs[0].astype("f8"),
        )  # fmt: skip
        for y, z in zip(result, expected, strict=True):
            assert y.dtype == dtype
            close(y.reshape(z.shape), z, 4 * (n + 8), UNIT[dtype], np.append(z, 1.0))
        state = s0[0]
        for i in range(min(n, 9)):
            y, state = ufuncs["linear_scan_step"](a[i], x[i], log, state)
            np.testing.assert_array_equal(y, result[0][i])
            np.testing.assert_array_equal(y, state)


def test_linear_scan_of_sequences():
    rng = np.random.default_rng(1)
    cuts = np.array([0, 4, 4, 30, 65])
    a, x, g = (rng.uniform(-1, 1, (2, 65, 20)) for _ in range(3))
    s0, gs = (rng.standard_normal((2, 4, 20)) for _ in range(2))
    h, s = ufuncs["linear_scan_state"](a, x, 0.0, 0.0, cuts[:-1], cuts[1:], s0)
    grads = ufuncs["linear_scan_state_backward"](a, x, g, 0.0, 0.0, cuts[:-1], cuts[1:], s0, gs)
    more = {"cu_seqlens": cuts, "initial_state": s0}
    expected = ref.linear_scan(a, x, **more, return_state=True)
    expected += ref.linear_scan_backward(a, x, g, **more, grad_state=gs)
    for y, z in zip((h, s, *grads), expected, strict=True):
        close(y, z, 300, UNIT["float64"])
    back = ufuncs["linear_scan"](a, x, 0.0, 1.0)
    turned = ufuncs["linear_scan"](a[:, ::-1], x[:, ::-1], 0.0, 0.0)[:, ::-1]
    np.testing.assert_array_equal(back, turned)
    close(back, ref.linear_scan(a, x, reverse=True), 300, UNIT["float64"])


def test_broadcasting():
    """A decay a token or a channel, and groups of channels that share B and C."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 40, 12))
    for shape in [(40, 1), (1, 12), (3, 1, 12), (1, 1)]:
        a = rng.uniform(0, 1, shape)
        h = ufuncs["linear_scan"](np.broadcast_to(a, x.shape), x, 0.0, 0.0)
        close(h, ref.linear_scan(a, x), 200, UNIT["float64"])
    arrays = one_sequence(operands(40, 24, 5))
    y = forward(arrays)[0]
    groups = {key: arrays[key].reshape(40, 2, 12).swapaxes(0, 1) for key in ("x", "dt", "z")} | {
        key: arrays[key].reshape(2, 12) for key in ("D", "dt_bias")
    }
    groups |= {"A": arrays["A"].reshape(2, 12, 5), "s0": arrays["s0"].reshape(2, 1, 12, 5)}
    np.testing.assert_array_equal(forward(arrays | groups)[0].swapaxes(0, 1).reshape(40, 24), y)


def numbers(x):
    """Complex numbers as the kernels take them."""
    return np.ascontiguousarray(x).view(x.real.dtype)


def of(x, dtype):
    return np.ascontiguousarray(x).view(np.result_type(dtype, np.complex64))


def complex_operands(n, m, dtype, log):
    """Factors of magnitude 1 at most, or their logarithms."""
    rng = np.random.default_rng([n, m])
    a = rng.uniform(-1 if log else 0, 0 if log else 1, (n, m)) + 0j
    a = a + 1j * rng.uniform(-3, 3, (n, m)) if log else a * np.exp(1j * rng.uniform(-3, 3, (n, m)))
    shapes = [(n, m), (n, m), (1, m), (1, m)]
    others = [rng.standard_normal((*shape, 2)) @ [1, 1j] for shape in shapes]
    return [x.astype(np.result_type(dtype, np.complex64)) for x in (a, *others)]


@pytest.mark.parametrize("reverse", [0.0, 1.0])
@pytest.mark.parametrize("log", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_complex_scan(dtype, log, reverse):
    for n, m in [(0, 3), (1, 1), (5, 0), (33, 35), (200, 32), (90, 75), (40, 2100)]:
        a, x, g, s0, gs = complex_operands(n, m, dtype, log)
        views = [numbers(y) for y in (a, x, g)]
        more = log, reverse, [0], [n], numbers(s0)
        result = ufuncs["complex_scan_state"](*views[:2], *more)
        result += ufuncs["complex_scan_state_backward"](*views, *more, numbers(gs))
        options = {"log": bool(log), "reverse": bool(reverse), "initial_state": s0[0]}
        expected = ref.linear_scan(a, x, **options, return_state=True)
        expected += ref.linear_scan_backward(a, x, g, **options, grad_state=gs[0])
        for y, z in zip(result, expected, strict=True):
            assert y.dtype == dtype
            close(of(y, dtype).reshape(z.shape), z, 8 * (n + 8), UNIT[dtype], np.append(z, 1.0))
        state = numbers(s0[0])
        for i in range(0 if reverse else min(n, 9)):
            y, state = ufuncs["complex_scan_step"](views[0][i], views[1][i], log, state)
            np.testing.assert_array_equal(y, result[0][i])
            np.testing.assert_array_equal(y, state)


@pytest.mark.parametrize("log", [0.0, 1.0])
def test_complex_gradients_by_differences(log):
    """dL/dRe + i dL/dIm of a real L."""
    a, x, g, s0, gs = (numbers(y) for y in complex_operands(5, 3, "float64", log))
    bounds = [0], [5]

    def loss():
        h, s = ufuncs["complex_scan_state"](a, x, log, 0.0, *bounds, s0)
        return (h * g).sum() + (s * gs).sum()

    grads = ufuncs["complex_scan_state_backward"](a, x, g, log, 0.0, *bounds, s0, gs)
    for grad, operand in zip(grads, (a, x, s0), strict=True):
        expected = central(loss, operand)
        close(grad, expected, 1, 1e-8, np.append(expected, 1.0))


@pytest.mark.parametrize("log", [0.0, 1.0])
def test_complex_layouts_and_threads(log):
    a, x, g, *_ = (numbers(y) for y in complex_operands(70, 500, "float32", log))
    before = linattn.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            linattn.set_num_threads(threads)
            for layout in (lambda y: y, *LAYOUTS.values()):
                operands = [layout(y) for y in (a, x, g)]
                results.append([ufuncs["complex_scan"](*operands[:2], log, 0.0)])
                results[-1].extend(ufuncs["complex_scan_backward"](*operands, log, 0.0))
    finally:
        linattn.set_num_threads(before)
    for other in results[1:]:
        for y, z in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(y, z)


def test_complex_causality():
    a, x, *_ = (numbers(y) for y in complex_operands(50, 7, "float32", 0.0))
    expected = ufuncs["complex_scan"](a, x, 0.0, 0.0)
    a[33:], x[33:] = np.nan, np.inf
    np.testing.assert_array_equal(ufuncs["complex_scan"](a, x, 0.0, 0.0)[:33], expected[:33])


def test_complex_resets():
    """A factor of 0, e^-inf whatever its phase, forgets what was before."""
    a, x, *_ = complex_operands(9, 5, "float64", 1.0)
    a[4] = complex(-np.inf, np.nan)
    h = of(ufuncs["complex_scan"](numbers(a), numbers(x), 1.0, 0.0), "f8")
    np.testing.assert_array_equal(h[4], x[4])
