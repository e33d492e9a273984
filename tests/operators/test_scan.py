"""linear_scan and selective_scan against their twins: values, gradients, states, steps, errors.

Bounds are those of the equations: the twin runs on absolute values, and beside each number carries
how many roundings of its terms it may be off.
"""

from functools import partial
from itertools import pairwise, product

import adjoint
import ml_dtypes
import numpy as np
import pytest
from bounds import close
from layouts import LAYOUTS
from scan_cases import UNIT, M, R, assert_close, doubled, linear, selective, wide
from states import flat

import linattn
from linattn import State
from linattn.reference import scan as ref

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
SIZES = [(0, 3, 2), (1, 1, 1), (33, 0, 2), (5, 7, 0), (33, 16, 16), (70, 37, 5), (129, 65, 8)]
SHAPES = [(7, 5), (5,), (7, 1), (1, 5), (), (2, 1, 1), (2, 7, 5), (3, 1, 7, 5)]  # of a, n = 7
CUTS = [0, 3, 3, 40, 70]


# --- values ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.parametrize(("log", "reverse"), [*product((False, True), repeat=2)])
def test_linear_scan(log, reverse, dtype):
    """h is off by (2 + 2 |log a|) u of |a| |h_before| a token, as the sums of absolutes show."""
    for n, m, _ in SIZES:
        a, x, grad_out, state = linear(n, m, dtype=dtype, log=log)
        options = {"log": log, "reverse": reverse}
        h, end = linattn.linear_scan(a, x, **options, initial_state=state, return_state=True)
        exact = ref.linear_scan(
            *doubled((a, x)), **options, initial_state=doubled(state), return_state=True
        )
        decay = np.exp(a.astype("f8")) if log else abs(a.astype("f8"))
        size, before = ref.linear_scan(
            decay, abs(x.astype("f8")), reverse=reverse,
            initial_state=abs(state.s.astype("f8")), return_state=True,
        )  # fmt: skip
        steps = 3 + (2 * abs(a.astype("f8")) if log else 0)
        error = ref.linear_scan(decay, steps * size, reverse=reverse)
        unit = UNIT[wide(dtype).name]
        slack = unit * (error + size) + UNIT[np.dtype(dtype).name] * size
        assert (abs(h.astype("f8") - exact[0]) <= slack).all()
        assert_close(end, exact[1], dtype, 8 * (n + 1) * (abs(before).max(initial=0) + 1))
        grads = linattn.linear_scan_backward(
            a, x, grad_out, **options, initial_state=state, grad_state=state
        )
        expected = ref.linear_scan_backward(
            *doubled((a, x, grad_out)), **options, initial_state=doubled(state),
            grad_state=doubled(state),
        )  # fmt: skip
        assert_close(grads, expected, dtype, 64)


@pytest.mark.parametrize("slow", [1e-3, 1e-4, 1e-5])
def test_bound_of_slow_decays(slow):
    """Constants of all mantissas, whose decays round alike at each token; `gated` compensates."""
    n, m, rng = int(2 / slow), 16, np.random.default_rng(0)
    a = (-slow * np.exp2(rng.random(m))).astype("f")
    x = np.exp2(rng.random(m)).astype("f")
    rows, g = np.broadcast_to(x, (n, m)), np.broadcast_to(a, (n, m))
    one, wide, decay = np.ones((n, 1), "f"), a.astype("f8"), np.exp(a.astype("f8"))
    # h_n = x (1 - decay^n) / (1 - decay), and the sum of such h, each decayed from its token on.
    exact = x * np.expm1(n * wide) / np.expm1(wide)
    off = (exact - n * x * decay**n) / -np.expm1(wide) * (3 - 2 * wide) * UNIT["float32"]
    h = linattn.linear_scan(g, rows, log=True)[-1]
    assert (abs(h - exact) <= off).all()
    y = linattn.selective_scan(rows, np.ones((n, m), "f"), a[:, None], one, one)[-1]
    assert (abs(y - exact) <= off).all()
    heads = linattn.gated(one, one, rows.T[..., None], np.ascontiguousarray(g.T))[:, -1, 0]
    close(heads, exact, rtol=8 * UNIT["float32"], atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.parametrize("given", [*product((False, True), repeat=3)], ids=str)
def test_selective_scan(given, dtype):
    for (n, m, r), softplus in product(SIZES, (False, True)):
        operands, more, grad_out, state = selective(n, m, r, dtype=dtype)
        options = {x: y for (x, y), chosen in zip(more.items(), given, strict=True) if chosen}
        flags = {"softplus": softplus}
        result = linattn.selective_scan(
            *operands, **options, **flags, initial_state=state, return_state=True
        )
        expected = ref.selective_scan(
            *doubled(operands), **doubled(options), **flags, initial_state=doubled(state),
            return_state=True,
        )  # fmt: skip
        assert_close(result, expected, dtype, 16 * (r + 4))
        result = linattn.selective_scan_backward(
            *operands, grad_out, **options, **flags, initial_state=state, grad_state=state
        )
        expected = ref.selective_scan_backward(
            *doubled(operands), doubled(grad_out), **doubled(options), **flags,
            initial_state=doubled(state), grad_state=doubled(state),
        )  # fmt: skip
        assert_close(result, expected, dtype, 16 * (n + m + r + 4))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_all_axes_of_linear_scan_broadcast(shape, swapped):
    rng = np.random.default_rng(0)
    a, x = rng.uniform(-1, 1, shape), rng.standard_normal((2, 7, 5))
    a, x = (x, a) if swapped else (a, x)
    h = linattn.linear_scan(a, x)
    g = rng.standard_normal(h.shape)
    close(h, ref.linear_scan(a, x), rtol=1e-12, atol=1e-12)
    grads = linattn.linear_scan_backward(a, x, g)
    for y, z in zip(grads, ref.linear_scan_backward(a, x, g), strict=True):
        assert y.shape == z.shape
        close(y, z, rtol=1e-10, atol=1e-10)


def test_a_python_number_does_not_change_the_dtype():
    x = np.ones((3, 2), "f4")
    h = linattn.linear_scan(0.5, x)
    assert h.dtype == np.float32
    np.testing.assert_array_equal(h[:, 0], [1, 1.5, 1.75])
    da, dx = linattn.linear_scan_backward(0.5, x, x)
    assert da.shape == () and dx.dtype == np.float32
    assert da == 2 * (1 + 0.5 + 1.5)


# --- gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_scan_is_the_adjoint(log, reverse):
    rng = np.random.default_rng(1)
    a, x, grad_out, _ = linear(log=log)
    options = {"log": log, "reverse": reverse, "cu_seqlens": CUTS}
    first, last = (State(rng.standard_normal((2, 4, M))) for _ in range(2))
    f = lambda a, x, s: ref.linear_scan(  # noqa: E731
        a, x, **options, initial_state=s, return_state=True
    )
    grads = linattn.linear_scan_backward(
        a, x, grad_out, **options, initial_state=first, grad_state=last
    )
    adjoint.check(f, [a, x, first.s], [grad_out, last.s], grads, rng)


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("parts", [{}, {"cu_seqlens": CUTS}, {"key_lengths": [9, 70]}], ids=str)
def test_selective_scan_is_the_adjoint(softplus, parts):
    rng = np.random.default_rng(1)
    operands, more, grad_out, _ = selective()
    packed = (4,) * ("cu_seqlens" in parts)
    first, last = (State(rng.standard_normal((2, *packed, M, R))) for _ in range(2))

    def f(*moved):
        options = dict(zip(more, moved[5:8], strict=True))
        return ref.selective_scan(
            *moved[:5], **options, softplus=softplus, **parts, initial_state=moved[8],
            return_state=True,
        )  # fmt: skip

    grads = linattn.selective_scan_backward(
        *operands, grad_out, **more, softplus=softplus, **parts, initial_state=first,
        grad_state=last,
    )  # fmt: skip
    leaves = [*operands, *more.values(), first.s]
    adjoint.check(f, leaves, [grad_out, last.s], grads, rng)


def test_gradients_are_central_differences():
    operands, more, grad_out, _ = selective(9, 3, 2, lead=())
    names = ["x", "dt", "A", "B", "C", *more]
    arrays = dict(zip(names, [*operands, *more.values()], strict=True))
    grads = linattn.selective_scan_backward(**arrays, grad_out=grad_out, softplus=True)
    for name, grad in zip(names, grads, strict=True):
        t = np.random.default_rng(2).standard_normal(grad.shape)
        up, down = (
            (grad_out * linattn.selective_scan(
                **arrays | {name: arrays[name] + e * t}, softplus=True)).sum()
            for e in (1e-6, -1e-6)
        )  # fmt: skip
        assert abs((up - down) / 2e-6 - (grad * t).sum()) < 1e-7, name


# --- sequences, states, layouts ----------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_sequences_are_those_alone(reverse):
    a, x, grad_out, _ = linear()
    options = {"reverse": reverse}
    first = State(np.random.default_rng(3).standard_normal((2, 4, M)))
    h, end = linattn.linear_scan(
        a, x, **options, cu_seqlens=CUTS, initial_state=first, return_state=True
    )
    grads = linattn.linear_scan_backward(
        a, x, grad_out, **options, cu_seqlens=CUTS, initial_state=first, grad_state=first
    )
    for i, (begin, stop) in enumerate(pairwise(CUTS)):
        rows, alone = (..., slice(begin, stop), slice(None)), State(first.s[:, i])
        one, last = linattn.linear_scan(
            a[rows], x[rows], **options, initial_state=alone, return_state=True
        )
        np.testing.assert_array_equal(h[rows], one)
        np.testing.assert_array_equal(end.s[:, i], last.s)
        own = linattn.linear_scan_backward(
            a[rows], x[rows], grad_out[rows], **options, initial_state=alone, grad_state=alone
        )
        for y, z in zip((grads[0][rows], grads[1][rows], grads[2].s[:, i]), flat(own), strict=True):
            np.testing.assert_array_equal(y, z)


def test_reverse_is_the_other_order():
    a, x, _, state = linear()
    h, end = linattn.linear_scan(a, x, reverse=True, initial_state=state, return_state=True)
    turned, last = linattn.linear_scan(
        a[:, ::-1], x[:, ::-1], initial_state=state, return_state=True
    )
    np.testing.assert_array_equal(h, turned[:, ::-1])
    np.testing.assert_array_equal(end.s, last.s)


def test_tokens_past_the_last_key_write_nothing():
    operands, more, _, state = selective()
    del more["D"]  # D x reads x of every token
    lengths = np.array([0, 33])
    options = more | {"key_lengths": lengths, "initial_state": state, "return_state": True}
    y, end = linattn.selective_scan(*operands, **options)
    x, dt, A, B, C = operands
    wild = [z.copy() for z in (x, dt, B)]
    for z in wild:
        z[0], z[1, 33:] = np.nan, np.inf
    again, _ = linattn.selective_scan(wild[0], wild[1], A, wild[2], C, **options)
    np.testing.assert_array_equal(y, again)
    np.testing.assert_array_equal(end.s[0], state.s[0])


@pytest.mark.parametrize("where", [linattn, ref], ids=["linattn", "twin"])
def test_tokens_past_the_last_key_keep_their_skip(where):
    """With no key and no state, y = D x silu(z), and its gradients."""
    operands, more, grad_out, _ = selective()
    x, D, z = operands[0], more["D"], more["z"]
    gate = z / (1 + np.exp(-z))
    y = where.selective_scan(*operands, **more, key_lengths=0)
    assert_close(y, D * x * gate, "f8", 16)
    dx, ddt, dA, dB, dC, dD, *_ = where.selective_scan_backward(
        *operands, grad_out, **more, key_lengths=0
    )
    c = grad_out * gate
    assert_close(dx, D * c, "f8", 16)
    assert_close(dD, (x * c).sum((0, 1)), "f8", 16 + x.size)
    assert not any(grad.any() for grad in (ddt, dA, dB, dC))


def test_states_stay_past_the_last_key():
    operands, more, _, state = selective()
    options = {"key_lengths": np.array([0, 33]), "return_state": True}
    y, end = linattn.selective_scan(*operands, **more, **options, initial_state=state)
    expected = ref.selective_scan(*operands, **more, **options, initial_state=state.s)
    assert_close((y, end), expected, "f8", 64)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
def test_steps(dtype, in_place):
    operands, more, _, state = selective(6, dtype=dtype)
    x, dt, A, B, C = operands
    y, end = linattn.selective_scan(
        *operands, **more, softplus=True, initial_state=state, return_state=True
    )
    now = State(state.s.copy())
    for i in range(6):
        token = x[:, i], dt[:, i], A, B[:, i], C[:, i]
        options = more | {"z": more["z"][:, i]}
        one, after = linattn.selective_scan_step(
            *token, now, **options, softplus=True, in_place=in_place
        )
        assert (after.s is now.s) is in_place
        assert_close(one, y[:, i].astype("f8"), dtype, 16)
        now = after
    assert_close(now, doubled(end), dtype, 16)
    a, x, _, state = linear(6, dtype=dtype)
    h = linattn.linear_scan(a, x, initial_state=state)
    for i in range(6):
        one, state = linattn.linear_scan_step(a[:, i], x[:, i], state, in_place=in_place)
        assert_close(one, h[:, i].astype("f8"), dtype, 4)


def test_cut_and_resumed():
    operands, more, _, _ = selective()
    x, dt, A, B, C = operands
    y, end = linattn.selective_scan(*operands, **more, return_state=True)
    state, parts = None, []
    for begin, stop in pairwise(CUTS):
        rows = (slice(None), slice(begin, stop))
        part, state = linattn.selective_scan(
            x[rows], dt[rows], A, B[rows], C[rows], **more | {"z": more["z"][rows]},
            initial_state=state, return_state=True,
        )  # fmt: skip
        parts.append(part)
    assert_close((np.concatenate(parts, 1), state), (y, end), "f8", 64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_threads_change_no_bit(layout):
    operands, more, grad_out, _ = selective(dtype="f4")
    a, x, g, _ = linear(dtype="f4")
    calls = [
        (partial(linattn.selective_scan, **more), operands),
        (partial(linattn.selective_scan_backward, **more), [*operands, grad_out]),
        (linattn.linear_scan, [a, x]),
        (partial(linattn.linear_scan, reverse=True), [a, x]),
        (partial(linattn.linear_scan_backward, reverse=True), [a, x, g]),
    ]
    before = linattn.get_num_threads()
    for f, arrays in calls:
        plain = flat(f(*arrays))
        try:
            linattn.set_num_threads(3)
            moved = flat(f(*(LAYOUTS[layout](y) for y in arrays)))
        finally:
            linattn.set_num_threads(before)
        for y, z in zip(plain, moved, strict=True):
            np.testing.assert_array_equal(y, z)


def test_out_may_overlap():
    a, x, *_ = linear(dtype="f4")
    expected = linattn.linear_scan(a, x)
    assert linattn.linear_scan(a, x, out=x) is x
    np.testing.assert_array_equal(x, expected)
    operands, more, *_ = selective(dtype="f4")
    expected = linattn.selective_scan(*operands, **more)
    np.testing.assert_array_equal(
        linattn.selective_scan(*operands, **more, out=operands[1]), expected
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_future_changes_no_bit(value, reverse):
    a, x, *_ = linear(dtype="f4")
    h = linattn.linear_scan(a, x, reverse=reverse)
    rows, kept = (slice(31), slice(31, None)) if reverse else (slice(31, None), slice(31))
    a[:, rows] = x[:, rows] = value
    np.testing.assert_array_equal(linattn.linear_scan(a, x, reverse=reverse)[:, kept], h[:, kept])
    operands, more, *_ = selective(dtype="f4")
    y = linattn.selective_scan(*operands, **more)
    for z in (operands[0], operands[1], operands[3], operands[4], more["z"]):
        z[:, 31:] = value
    np.testing.assert_array_equal(linattn.selective_scan(*operands, **more)[:, :31], y[:, :31])


def test_growing_states_are_allowed():
    """Positive rates and negative time steps."""
    x = np.ones((3, 1))
    y = linattn.selective_scan(x, x, np.log([[2.0]]), x, x)
    close(y[:, 0], np.array([1, 3, 7]), rtol=1e-14, atol=0)
    y = linattn.selective_scan(x, -x, np.log([[0.5]]), x, x)
    close(y[:, 0], np.array([-1, -3, -7]), rtol=1e-14, atol=0)


# --- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "_backward"])
@pytest.mark.parametrize(("name", "changed", "error", "words"), [
    ("linear_scan", {"a": np.ones((4, 2))}, ValueError, ["a has shape (4, 2)", "x (7, 3)"]),
    ("linear_scan", {"log": 1}, TypeError, ["log is 1", "True or False"]),
    ("linear_scan", {"reverse": None}, TypeError, ["reverse is None"]),
    ("linear_scan", {"scale": 1.0}, TypeError, ["scale"]),
    ("linear_scan", {"key_lengths": 3}, TypeError, ["key_lengths"]),
    ("linear_scan", {"cu_seqlens": [0, 4]}, ValueError, ["cu_seqlens ends with 4", "n = 7"]),
    ("linear_scan", {"initial_state": State(np.ones(4))}, ValueError,
     ["initial_state.s has shape (4,)", "(3,)"]),
    ("linear_scan", {"initial_state": State(np.ones(3), np.ones(3))}, ValueError,
     ["initial_state.z is given"]),
    ("selective_scan", {"dt": np.ones((7, 2))}, ValueError, ["dt has shape (7, 2)", "(..., 7, 3)"]),
    ("selective_scan", {"A": np.ones((2, 4))}, ValueError, ["A has shape (2, 4)", "(..., 3, r)"]),
    ("selective_scan", {"B": np.ones((7, 2))}, ValueError, ["B has shape (7, 2)", "(..., 7, 4)"]),
    ("selective_scan", {"C": np.ones((6, 4))}, ValueError, ["C has shape (6, 4)"]),
    ("selective_scan", {"D": np.ones(4)}, ValueError, ["D has shape (4,)", "(..., 3)"]),
    ("selective_scan", {"z": np.ones((7, 4))}, ValueError, ["z has shape (7, 4)"]),
    ("selective_scan", {"dt_bias": np.ones(2)}, ValueError, ["dt_bias has shape (2,)"]),
    ("selective_scan", {"softplus": 1.0}, TypeError, ["softplus is 1.0", "True or False"]),
    ("selective_scan", {"A": np.ones((3, 4), complex)}, TypeError, ["A has dtype complex128"]),
    ("selective_scan", {"feature_map": "elu"}, TypeError, ["feature_map"]),
    ("selective_scan", {"key_lengths": 8}, ValueError, ["key_lengths has values", "0 to 7"]),
    ("selective_scan", {"initial_state": State(np.ones((3, 5)))}, ValueError,
     ["initial_state.s has shape (3, 5)", "(3, 4)"]),
])  # fmt: skip
def test_errors(name, end, changed, error, words):
    """They name the function and the argument, and nothing is written."""
    x, r = np.ones((7, 3)), np.ones((7, 4))
    good = {
        "linear_scan": {"a": x, "x": x},
        "selective_scan": {"x": x, "dt": x, "A": np.ones((3, 4)), "B": r, "C": r},
    }[name]
    out = np.full((7, 3), 5.0)
    more = {"grad_out": x} if end else {"out": out}
    with pytest.raises(error) as caught:
        getattr(linattn, name + end)(**good | changed, **more)
    for word in words:
        assert word in str(caught.value)
    assert f"{name}{end}" in str(caught.value)
    assert (out == 5).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: np.dtype(x).name)
@pytest.mark.parametrize("number", [1, 0.5, True, np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_numbers_follow_the_promotion_of_numpy(dtype, number):
    """Those of Python have no say in the dtype; those of NumPy do."""
    x = np.ones((3, 2), dtype)
    weak = type(number) in (bool, int, float)
    full = np.full_like(x, number) if weak else np.full(x.shape, number)
    expected = linattn.linear_scan(full, x)
    found = linattn.linear_scan(number, x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    h, _ = linattn.linear_scan_step(number, x, State(np.ones(x.shape, wide(expected.dtype))))
    assert h.dtype == expected.dtype
