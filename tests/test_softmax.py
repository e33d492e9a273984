"""Softmax attention and Linformer: against their twins, stable, causal, bounded in memory."""

import numpy as np
import pytest
from bounds import check, close, roundings
from cases import DTYPES, SOFTMAX, Case, make

import linattn
from linattn import _config
from linattn import _reference_softmax as reference

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


@pytest.mark.parametrize("name", _config.available_isas())
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


def differences(f, arrays, grads, rng):
    """Each gradient against central differences of the scalar f."""
    for i, grad in enumerate(grads):
        step = 1e-6 * rng.standard_normal(arrays[i].shape)
        ends = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[i] = moved[i] + sign * step
            ends.append(f(*moved))
        close((ends[0] - ends[1]) / 2, (grad * step).sum(), atol=0, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_by_differences(causal):
    q, k, v, g = operands(70, 70, 5, 4)
    k, v = k[:1], v[0]  # broadcast: summed back
    grads = linattn.softmax_attention_backward(q, k, v, g, causal=causal)

    def loss(q, k, v):
        return (g * linattn.softmax_attention(q, k, v, causal=causal)).sum()

    differences(loss, (q, k, v), grads, np.random.default_rng(0))


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


def test_nothing_of_a_later_token():
    q, k, v, g = operands(200, 200, 16, 16)
    o = linattn.softmax_attention(q, k, v, causal=True)
    dq = linattn.softmax_attention_backward(q, k, v, g, causal=True)[0]
    for t in (199, 150, 128, 3):
        kt, vt = k.copy(), v.copy()
        kt[:, t:], vt[:, t:] = np.nan, np.inf
        moved = linattn.softmax_attention(q, kt, vt, causal=True)
        np.testing.assert_array_equal(moved[:, :t], o[:, :t])
        assert np.isnan(moved[:, t:]).all()
        moved = linattn.softmax_attention_backward(q, kt, vt, g, causal=True)[0]
        np.testing.assert_array_equal(moved[:, :t], dq[:, :t])


def test_threads_and_layouts(threads):
    q, k, v, g = operands(700, 700, 20, 9, "float32")
    threads(1)
    o = linattn.softmax_attention(q, k, v, causal=True)
    grads = linattn.softmax_attention_backward(q, k, v, g)
    for count in (2, 3):
        threads(count)
        np.testing.assert_array_equal(linattn.softmax_attention(q, k, v, causal=True), o)
        for x, y in zip(linattn.softmax_attention_backward(q, k, v, g), grads, strict=True):
            np.testing.assert_array_equal(x, y)
    turned = [np.ascontiguousarray(x.mT).mT for x in (q, k, v)]
    np.testing.assert_array_equal(linattn.softmax_attention(*turned, causal=True), o)
    out = np.empty_like(o)
    assert linattn.softmax_attention(q, k, v, causal=True, out=out) is out
    np.testing.assert_array_equal(out, o)


def test_no_keys():
    q, k, v, g = operands(5, 0, 3, 2)
    assert not linattn.softmax_attention(q, k, v).any()
    assert not linattn.softmax_attention_backward(q, k, v, g)[0].any()


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
    if dtype == np.float64:
        differences(
            lambda *x: (g * linattn.linformer(*x)).sum(), (q, k, v, E, F), grads,
            np.random.default_rng(1),
        )  # fmt: skip


Q, E = np.ones((2, 5, 3)), np.ones((5, 4))
BAD = [
    (lambda: linattn.softmax_attention(Q, Q[:, :4], Q[:, :4], causal=True), ValueError, "k has"),
    (lambda: linattn.softmax_attention(Q, Q, Q, causal=1), TypeError, "causal is 1"),
    (lambda: linattn.softmax_attention(Q, Q, Q, scale="x"), TypeError, "scale is 'x'"),
    (lambda: linattn.softmax_attention(Q, Q, Q, scale=np.inf), ValueError, "scale is inf"),
    (lambda: linattn.softmax_attention(Q, Q[..., :2], Q), ValueError, "k has shape"),
    (lambda: linattn.softmax_attention(Q, Q, Q, out=Q[0]), ValueError, "out has shape"),
    (lambda: linattn.softmax_attention_backward(Q, Q, Q, E), ValueError, "grad_out has shape"),
    (lambda: linattn.linformer(Q, Q, Q, E[:4], E), ValueError, "E has shape"),
    (lambda: linattn.linformer(Q, Q, Q, E, E[:4]), ValueError, "F has shape"),
    (lambda: linattn.linformer(Q, Q, Q, E, E[:, :3]), ValueError, "F has shape"),
    (lambda: linattn.linformer(Q, Q, Q, E[0], E), ValueError, "E has shape"),
    (lambda: linattn.linformer(Q, Q, Q, np.ones((3, 5, 4)), E), ValueError, "leading axes of E"),
    (lambda: linattn.linformer(Q, Q, Q, E * 1j, E), TypeError, "E has dtype"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[x[2] for x in BAD])
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


MEMORY = """
import resource
import numpy as np
import linattn
x = np.random.default_rng(0).standard_normal((16384, 16), dtype=np.float32)
linattn.softmax_attention(x[:9], x[:9], x[:9])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
linattn.softmax_attention(x, x, x, causal=True)
linattn.softmax_attention_backward(x[:8192], x[:8192], x[:8192], x[:8192])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_linear(interpreter):
    """A score matrix would be 1 GiB."""
    stdout, _ = interpreter(MEMORY)
    assert int(stdout) < 32 * 1024
