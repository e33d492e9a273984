"""Softmax attention and Linformer: against their twins, stable, causal, bounded in memory."""

import numpy as np
import pytest
from bounds import check, close, roundings
from cases import DTYPES, SOFTMAX, Case, make
from isas import ISAS
from slow import slow

import linattn
from linattn._core import products
from linattn.reference import softmax as reference

SIZES = [  # n, s, d, m
    (0, 3, 2, 2),
    (1, 1, 1, 1),
    (5, 5, 3, 2),
    (64, 64, 16, 16),
    (65, 65, 7, 33),
    (300, 300, 64, 64),
    (257, 100, 65, 100),
    (10, 200, 64, 128),
    (70, 70, 130, 5),
]


def operands(n, s, d, m, dtype="float64", lead=(2,)):
    return make(Case("softmax_attention_backward", n, d, m, s, lead=lead, dtype=dtype))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", SOFTMAX)
def test_against_the_twin(isa, name, dtype, operator):
    isa(name)
    for n, s, d, m in SIZES:
        for masked in (False, True) if n == s else (False,):
            for scale in (None, 0.7):
                case = Case(
                    operator, n, d, m, s, lead=(2,), dtype=dtype, masked=masked, scale=scale
                )
                check(linattn, case)


def test_large_scores():
    """Scores of 1e4 neither overflow nor lose the largest."""
    q = np.eye(4, dtype=np.float32)[None]
    v = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    np.testing.assert_array_equal(linattn.softmax_attention(q, q, v, scale=1e4), v)
    np.testing.assert_array_equal(linattn.softmax_attention(-q, q, v, scale=-1e4), v)
    for x in linattn.softmax_attention_backward(q, q, v, v, scale=1e4):
        assert np.isfinite(x).all()
    E = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(linattn.linformer(q, q, v, E, E, scale=1e4), v)


OVERFLOW = [  # dtype, size of an input, scale: powers of 2, so that sums of integers are exact
    (np.float16, 2.0**15, 2.0**110),
    (np.float32, 2.0**100, None),
    (np.float32, 1.0, 2.0**127),
    (np.float64, 2.0**700, None),
]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "size", "scale"), OVERFLOW)
def test_scores_that_overflow(isa, name, causal, dtype, size, scale):
    """They tie where they have one sign; a difference of two that cancel is 0."""
    isa(name)
    n, d = 70, 16
    rng = np.random.default_rng(0)
    v, g = rng.standard_normal((2, n, 5)).astype(dtype)
    seen = np.tri(n, dtype=bool) if causal else np.ones((n, n), bool)
    signs = rng.choice([-1, 1], (n, d))
    apart = np.where(np.arange(n)[:, None] == 3, 0, signs)  # one key whose scores are finite
    for of_q, of_k in (
        (np.ones((n, d)), np.ones((n, d))),
        (np.ones((n, d)), -np.ones((n, d))),
        (signs, signs[::-1]),
        (signs, apart),
    ):
        q, k = (size * of_q).astype(dtype), (size * of_k).astype(dtype)
        order = np.where(seen, np.sign(of_q @ of_k.T), -2)
        p = order == order.max(-1, keepdims=True)
        p = p / p.sum(-1, keepdims=True)
        wide = np.float64 if dtype == np.float64 else np.float32
        tolerance = 8 * np.finfo(wide).eps if wide == dtype else 1e-3
        options = {"causal": causal, "scale": scale}
        o = linattn.softmax_attention(q, k, v, **options)
        close(o, p @ v, atol=4 * tolerance)
        with np.errstate(over="ignore"):  # dk of 16-bit numbers
            dv = linattn.softmax_attention_backward(q, k, v, g, **options)[2]
        close(dv, p.T @ g, atol=n * tolerance)
        if not causal:
            E = np.eye(n, dtype=dtype)
            o = linattn.linformer(q, k, v, E, E, scale=scale)
            close(o, p @ v, atol=4 * tolerance)


@pytest.mark.parametrize("sign", [1, -1])
def test_scale_times_queries_that_overflow(sign):
    x, v = np.full((70, 8), 1e30, np.float32), np.arange(70, dtype=np.float32)[:, None]
    o = linattn.softmax_attention(sign * x, x, v, scale=1e30, causal=True)
    close(o, v / 2, atol=70 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_where_scores_overflow(causal):
    """Queries and keys of one size: weights are equal, and the formula is exact."""
    n, d, size = 70, 4, 1e25
    v, g = np.random.default_rng(0).standard_normal((2, n, 5)).astype(np.float32)
    x = np.full((n, d), size, np.float32)
    p = np.tri(n) if causal else np.ones((n, n))
    p /= p.sum(-1, keepdims=True)
    e = p * (g @ v.T - (g * (p @ v)).sum(-1, keepdims=True)) / np.sqrt(d)
    dq, dk, _ = linattn.softmax_attention_backward(x, x, v, g, causal=causal)
    tolerance = 100 * np.finfo(np.float32).eps * size
    close(dq, e @ x, atol=tolerance)
    close(dk, e.T @ x, atol=tolerance)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_large_scores_sum_to_one(isa, name, dtype, causal):
    """Backwards too, where scores of 1e10 are off by thousands: dv sums to the sum of g."""
    isa(name)
    q, k, v, g = operands(100, 100, 130, 3, dtype, lead=())
    size = dtype(1e4 if dtype == np.float32 else 1e10)
    dv = linattn.softmax_attention_backward(size * q, size * k, v, g, causal=causal, scale=0.3)[2]
    tolerance = 100 * np.finfo(dtype).eps * abs(g).sum()
    close(dv.sum(0), g.sum(0), atol=tolerance)


def test_nan_stays():
    """A NaN in q or k is no overflow: it stays, with the rows that see it, in any block."""
    for t in (0, 69, 130):
        for which in range(2):
            x = [np.full((140, 8), 1e30, np.float32) for _ in range(2)]
            x[which][t, 3] = np.nan
            o = linattn.softmax_attention(*x, np.ones((140, 2), np.float32), causal=True)
            hit = np.arange(140) == t if which == 0 else np.arange(140) >= t
            np.testing.assert_array_equal(np.isnan(o).all(-1), hit)
            np.testing.assert_array_equal(np.isnan(o).any(-1), hit)


LINFORMER = [((), ()), ((3,), ()), ((2, 1), (3,)), ((2, 3), (2, 3))]


@pytest.mark.parametrize(("of_keys", "of_values"), LINFORMER)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linformer(of_keys, of_values, dtype):
    """Shared projections, projections per head, and one head of keys for all."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    q, k, v, g = draw(2, 3, 11, 5), draw(2, 1, 20, 5), draw(2, 3, 20, 6), draw(2, 3, 11, 6)
    E, F = draw(*of_keys, 20, 4), draw(*of_values, 20, 4)
    # As for softmax attention, whose scores are q . (E^T k) here: each may be off by u times the
    # same with every factor positive, and a result by twice that of its largest entry.
    sizes = q.shape[-1] ** -0.5 * (abs(q) @ (abs(E).mT @ abs(k)).mT)
    count = 4 + 2 * float(sizes.max())
    o = linattn.linformer(q, k, v, E, F)
    assert o.dtype == dtype
    expected = reference.linformer(q, k, v, E, F)
    close(o, expected, atol=roundings(count, expected, dtype=dtype))
    grads = linattn.linformer_backward(q, k, v, E, F, g)
    exact = reference.linformer_backward(q, k, v, E, F, g)
    for x, y, operand in zip(grads, exact, (q, k, v, E, F), strict=True):
        assert x.shape == operand.shape
        assert x.dtype == dtype
        close(x, y, atol=roundings(count, y, dtype=dtype))


def test_the_cotangent_has_a_say_in_the_dtype():
    """As everywhere: a wider one is not narrowed, and gradients are as exact as it is."""
    q, k, v, g = (x.astype("f4") for x in operands(5, 7, 4, 3, lead=()))
    E = np.random.default_rng(0).standard_normal((7, 4)).astype("f4")
    for f, arrays in (
        (linattn.softmax_attention_backward, (q, k, v)),
        (linattn.linformer_backward, (q, k, v, E, E)),
    ):
        wide = f(*(x.astype("f8") for x in arrays), g.astype("f8"))
        for x, y in zip(f(*arrays, g.astype("f8")), wide, strict=True):
            assert x.dtype == np.float64
            np.testing.assert_array_equal(x, y)
        for x in f(*(x.astype("f2") for x in arrays), g):
            assert x.dtype == np.float32


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_products_in_parts(monkeypatch, lead):
    """Heads first, then rows: the same numbers, whatever the axes that broadcast."""
    rng = np.random.default_rng(0)
    integers = lambda *shape: rng.integers(-9, 9, shape).astype(np.float32)  # noqa: E731
    pairs = [(integers(*a, 11, 5), integers(*b, 5, 7)) for a in ((), lead) for b in ((), lead)]
    pairs.append((integers(*lead, 0, 5), integers(5, 7)))
    for part in (1, 50, 500, 2**26):
        monkeypatch.setattr(products, "PART", part)
        for x, y in pairs:
            np.testing.assert_array_equal(products.product(x, y), x @ y)


INTERRUPTED = """
import signal, time
import linattn, numpy as np
from linattn._core.products import product
signal.signal(signal.SIGPROF, signal.default_int_handler)
one = np.ones((1, 64), "f4")
x = np.broadcast_to(one, (2**26, 64))
y = np.ones((4096, 4096), "f4")
signal.setitimer(signal.ITIMER_PROF, 0.2)
start = time.process_time()
try:
    {call}
except KeyboardInterrupt:
    assert time.process_time() - start < 2
    print("interrupted")
"""


@pytest.mark.any_isa
@pytest.mark.parametrize(
    "call",
    [
        "linattn.linformer(one, x, x, x, x)",
        *slow(
            "linattn.linformer_backward(one, x, x, x, x, one)",
            "product(np.broadcast_to(y[:1], (2**14, 4096)), y)",
        ),
    ],
)
def test_linformer_can_be_interrupted(interpreter, call):
    """Minutes of work, in one product of NumPy's or of the kernels."""
    stdout, _ = interpreter(INTERRUPTED.format(call=call))
    assert stdout.split() == ["interrupted"]


def test_projections_of_other_heads():
    q, E = np.ones((2, 5, 3)), np.ones((5, 4))
    for bad in (E[:4], E[0], np.ones((3, 5, 4))):
        with pytest.raises(ValueError, match="E has shape"):
            linattn.linformer(q, q, q, bad, E)


MEMORY = """
import numpy as np
import linattn
from memory import peak
x = np.random.default_rng(0).standard_normal((16384, 16), dtype=np.float32)
linattn.softmax_attention(x[:9], x[:9], x[:9])
before = peak()
linattn.softmax_attention(x, x, x, causal=True)
linattn.softmax_attention_backward(x[:8192], x[:8192], x[:8192], x[:8192])
print(peak() - before)
"""


@pytest.mark.unsanitized
def test_memory_is_linear(interpreter):
    """A score matrix would be 1 GiB."""
    stdout, _ = interpreter(MEMORY)
    assert int(stdout) < 2**25
