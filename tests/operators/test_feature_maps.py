"""Feature maps as objects: against their twins, by differences, and as values."""

import pickle

import numpy as np
import pytest
from bounds import close
from slow import looped

import linattn
from linattn import feature_maps as maps
from linattn.reference import maps as reference

EPS = np.finfo(float).eps
ORTHOGONAL = 16 * EPS  # Householder's method: so many roundings of unit vectors of 8 numbers
D = 6
KERNELS = ("linear", "glu", "oglu", "aoglu")
MAPS = [
    *(maps.get(name) for name in maps.Elementwise.names),
    maps.get("relu").normalized(),
    maps.DPFP(),
    maps.DPFP(nu=3, normalize=False),
    maps.DPFP(nu=14, eps=0.5),
    maps.Rebased(),
    maps.L2Norm(),
    maps.Taylor(scale=0.3),
    maps.RandomFourierFeatures.sample(D, 9, rng=1, temperature=0.3),
    maps.PositiveRandomFeatures.sample(D, 9),
    maps.PositiveRandomFeatures.sample(D, 9, hyperbolic=True, norms="sqrt"),
    maps.PositiveRandomFeatures.sample(D, 4).normalized(eps=0.0),
    *(
        maps.GeneralizedRandomFeatures.sample(D, 9, fn=fn, orthogonal=False)
        for fn in maps.GeneralizedRandomFeatures.functions
    ),
    *(getattr(maps.FeedforwardKernel, kind)(3, D, depth) for kind in KERNELS for depth in (1, 3)),
]
every_map = pytest.mark.parametrize("phi", MAPS, ids=str)


def inputs(dtype=np.float64, scale=1.0):
    rng = np.random.default_rng(7)
    return (scale * rng.standard_normal((2, 3, 70, D))).astype(dtype)


@every_map
@looped(dtype=[np.float32, np.float64])
def test_against_the_twin(phi, dtype):
    x = inputs(dtype)
    exact, y = reference.twin(phi), phi(x)
    expected = exact(x.astype(np.float64))
    assert y.dtype == dtype
    assert y.shape == (*x.shape[:-1], phi.features(D))
    rtol = 300 * np.finfo(dtype).eps
    close(y, expected, rtol=rtol, atol=rtol * abs(expected).max())
    grad = np.random.default_rng(8).standard_normal(y.shape).astype(dtype)
    dx, exact_dx = phi.input_gradient(x, grad), exact.backward(x.astype(float), grad.astype(float))
    assert dx.dtype == dtype
    assert dx.shape == x.shape
    close(dx, exact_dx, rtol=rtol, atol=rtol * abs(exact_dx).max())


@every_map
def test_gradient_by_differences(phi):
    x = inputs()
    grad = np.random.default_rng(8).standard_normal((*x.shape[:-1], phi.features(D)))
    step = np.random.default_rng(9).standard_normal(x.shape) * 1e-6
    change = (grad * (phi(x + step) - phi(x - step))).sum() / 2
    slope = (phi.input_gradient(x, grad) * step).sum()
    assert abs(change - slope) <= 1e-7 * max(abs(slope), 1e-6)


@every_map
@looped(value=[np.nan, np.inf])
def test_rows_do_not_meet(phi, value):
    """What a row of padding holds reaches no other row, forwards or backwards."""
    x = inputs(np.float32)
    grad = np.ones((*x.shape[:-1], phi.features(D)), np.float32)
    for t in (0, 15, 64, 69):
        bad, others = x.copy(), np.arange(x.shape[-2]) != t
        bad[..., t, :] = value
        for f in (phi, lambda x: phi.input_gradient(x, grad)):
            with np.errstate(all="ignore"):
                y = f(bad)
            np.testing.assert_array_equal(y[..., others, :], f(x)[..., others, :])


@every_map
def test_is_a_value(phi):
    again = pickle.loads(pickle.dumps(phi))
    assert again == phi
    assert hash(again) == hash(phi)
    assert type(phi).__name__ in repr(phi)
    np.testing.assert_array_equal(again(inputs()), phi(inputs()))
    assert phi != maps.DPFP(nu=2)


@every_map
def test_layouts(phi):
    x = inputs()
    y = phi(x)
    close(phi(np.asfortranarray(x)), y, atol=0, rtol=1e-13)
    close(phi(x[..., ::-1, :]), y[..., ::-1, :], atol=0, rtol=1e-13)
    assert phi(x[..., :0, :]).shape == (2, 3, 0, phi.features(D))


@pytest.mark.parametrize("d", [1, 5, 16, 37])
def test_products_of_polynomial_maps(d):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 9, d))
    for scale in (None, 2.0):
        s = (x * y).sum(-1) * (d**-0.5 if scale is None else scale)
        powers = {maps.Rebased: s**2, maps.Taylor: 1 + s + s**2 / 2}
        for kind, expected in powers.items():
            phi = kind(scale)
            close((phi(x) * phi(y)).sum(-1), expected, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("kind", [maps.Rebased, maps.Taylor])
@looped(n=[1, 9, 33], d=[1, 5, 16, 37, 70])
def test_gradients_of_polynomial_maps(kind, n, d):
    """Of any width, and the same bits from rows and columns."""
    rng, phi = np.random.default_rng(4), kind()
    x = rng.standard_normal((n, d))
    grad = rng.standard_normal((n, phi.features(d)))
    found, expected = phi.input_gradient(x, grad), reference.twin(phi).backward(x, grad)
    close(found, expected, rtol=0, atol=(d + 4) * EPS * abs(expected).max())
    columns = phi.input_gradient(np.asfortranarray(x), np.asfortranarray(grad))
    np.testing.assert_array_equal(columns, found)
    np.testing.assert_array_equal(phi(np.asfortranarray(x)), phi(x))


def test_large_gradients_of_polynomial_maps():
    """What is finite at the end is so on the way."""
    x, grad = np.full((1, 1), 1e-10, np.float32), np.float32([[0, 0, 3e38]])
    for phi, g in (maps.Taylor(1.0), grad), (maps.Rebased(1.0), grad[:, 2:]):
        expected = reference.twin(phi).backward(x.astype(float), g.astype(float))
        close(phi.input_gradient(x, g), expected, rtol=1e-6, atol=0)


def test_zeros_of_dpfp():
    """relu's derivative at 0 is 0, and a row that sums to 0 gives 0."""
    for phi in (maps.DPFP(), maps.DPFP(nu=2, eps=0.0), maps.get("relu").normalized(eps=0.0)):
        x = np.zeros((3, D))
        y = phi(x)
        assert not y.any()
        assert not phi.backward(x, np.ones_like(y)).any()
    x = np.array([[1.0, 0.0, -2.0]])
    dx = maps.DPFP(normalize=False).backward(x, np.ones((1, 6)))
    assert dx[0, 1] == 0


def test_seeds():
    first, same = (maps.PositiveRandomFeatures.sample(4, 10, rng=3) for _ in range(2))
    assert first == same
    assert first == maps.PositiveRandomFeatures.sample(4, 10, rng=np.random.default_rng(3))
    assert first != maps.PositiveRandomFeatures.sample(4, 10, rng=4)
    other = first.redraw(4)
    assert other.omega.shape == first.omega.shape
    assert other == maps.PositiveRandomFeatures.sample(4, 10, rng=4)
    assert maps.RandomFourierFeatures.sample(4, 10) == maps.RandomFourierFeatures.sample(4, 10)


def test_orthogonal_directions():
    omega = maps.draw(8, 20, rng=0)
    assert omega.shape == (8, 20)
    unit = omega / np.linalg.norm(omega, axis=0)
    close(unit[:, :8].T @ unit[:, :8], np.eye(8), atol=ORTHOGONAL)
    close(unit[:, 16:].T @ unit[:, 16:], np.eye(4), atol=ORTHOGONAL)
    many = maps.draw(16, 8000, rng=1)
    assert abs((many**2).sum(0).mean() - 16) < 0.5  # chi(d) norms
    fixed = maps.draw(16, 40, norms="sqrt")
    close(np.linalg.norm(fixed, axis=0), np.full(40, 4.0), atol=0, rtol=16 * EPS)


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_kernel_of_positive_features(hyperbolic):
    x, y = 0.5 * np.random.default_rng(0).standard_normal((2, 20, 8))
    phi = maps.PositiveRandomFeatures.sample(8, 20_000, hyperbolic=hyperbolic)
    expected = np.exp(x @ y.T / np.sqrt(8))
    close(phi(x) @ phi(y).T, expected, atol=0, rtol=0.2)


def test_kernel_of_fourier_features():
    x, y = 0.5 * np.random.default_rng(0).standard_normal((2, 20, 8))
    phi = maps.RandomFourierFeatures.sample(8, 20_000, temperature=0.7)
    distance = ((x[:, None] - y) ** 2).sum(-1)
    # Four standard deviations of a mean of 20,000 cosines, each of variance 1/2 at most.
    close(phi(x) @ phi(y).T, np.exp(-0.35 * distance), atol=4 * (2 * 20_000) ** -0.5)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gradients_of_weights(kind, depth):
    """By differences, with heads and shared by them."""
    rng = np.random.default_rng(0)
    per_head = getattr(maps.FeedforwardKernel, kind)(3, D, depth, rng=1)
    shared = maps.FeedforwardKernel([tuple(w[0] for w in unit) for unit in per_head.weights])
    for phi in (per_head, shared):
        x = inputs()
        grad = rng.standard_normal(x.shape)
        _, gradients = phi.backward(x, grad)
        for i, unit in enumerate(phi.weights):
            for j, w in enumerate(unit):
                step = rng.standard_normal(w.shape) * 1e-6
                ends = []
                for sign in (1, -1):
                    moved = [list(u) for u in phi.weights]
                    moved[i][j] = w + sign * step
                    ends.append((grad * maps.FeedforwardKernel(moved)(x)).sum())
                assert gradients[i][j].shape == w.shape
                slope = (gradients[i][j] * step).sum()
                close((ends[0] - ends[1]) / 2, slope, rtol=1e-5, atol=1e-10)


def test_initial_weights():
    phi = maps.FeedforwardKernel.aoglu(2, 64, 2, rng=5)
    assert [w.shape for w in phi.weights[1]] == [(2, 64, 64), (2, 64, 16), (2, 16, 64)]
    w, a, b = phi.weights[0]
    close(w @ w.mT, np.broadcast_to(np.eye(64), w.shape), atol=64 * EPS)
    assert abs(a.std() / np.sqrt(2 / 64) - 1) < 0.1
    assert abs(b.std() / np.sqrt(2 / 16) - 1) < 0.1
    assert phi == maps.FeedforwardKernel.aoglu(2, 64, 2, rng=5)


def test_added_parameters():
    """The kernels of 8 heads of 64 add little to a layer of width 512."""
    layer = 4 * 512**2 + 8 * 512**2
    added = maps.FeedforwardKernel.aoglu(8, 64).parameters
    assert added == 8 * 64**2 * 3 // 2
    assert added / layer < 0.1


def test_orthogonality():
    phi = maps.FeedforwardKernel([(2 * np.eye(4), np.ones((4, 4)))])
    loss, gradients = phi.orthogonality(0.5)
    assert loss == 0.5 * 9 / 4
    assert not gradients[0][1].any()
    phi = maps.FeedforwardKernel([(np.random.default_rng(0).standard_normal((3, 4, 4)),)])
    (w,), (of_w,) = phi.weights[0], phi.orthogonality(2.0)[1][0]
    step = 1e-6 * np.random.default_rng(1).standard_normal(w.shape)
    up, down = (maps.FeedforwardKernel([(w + s * step,)]).orthogonality(2.0)[0] for s in (1, -1))
    close((up - down) / 2, (of_w * step).sum(), atol=0, rtol=1e-6)


OMEGA = np.ones((4, 8))
BAD = [
    (lambda: maps.get("performer"), ValueError, "feature_map is 'performer'"),
    (lambda: maps.get(3), TypeError, "feature_map is 3"),
    (lambda: maps.Elementwise("tanh"), ValueError, "name is 'tanh'"),
    (lambda: maps.DPFP(0), ValueError, "nu is 0"),
    (lambda: maps.DPFP(1.5), TypeError, "nu is 1.5"),
    (lambda: maps.DPFP(True), TypeError, "nu is True"),
    (lambda: maps.DPFP(normalize="yes"), TypeError, "normalize is 'yes'"),
    (lambda: maps.DPFP(eps=-1), ValueError, "eps is -1"),
    (lambda: maps.Taylor(0), ValueError, "Taylor: scale is 0"),
    (lambda: maps.Rebased("1"), TypeError, "Rebased: scale is '1'"),
    (lambda: maps.RandomFourierFeatures(OMEGA[0]), ValueError, "omega has shape"),
    (lambda: maps.RandomFourierFeatures(OMEGA[None]), ValueError, "omega has shape"),
    (lambda: maps.RandomFourierFeatures("abc"), TypeError, "omega has dtype"),
    (lambda: maps.PositiveRandomFeatures(OMEGA, temperature=0), ValueError, "temperature is 0"),
    (lambda: maps.PositiveRandomFeatures(OMEGA, hyperbolic=2), TypeError, "hyperbolic is 2"),
    (lambda: maps.PositiveRandomFeatures.sample(4, 0), ValueError, "features is 0"),
    (lambda: maps.PositiveRandomFeatures.sample(4, 2.0), TypeError, "features is 2.0"),
    (lambda: maps.PositiveRandomFeatures.sample(4, 2, norms="l1"), ValueError, "norms is 'l1'"),
    (lambda: maps.GeneralizedRandomFeatures(OMEGA, fn="cos"), ValueError, "fn is 'cos'"),
    (lambda: maps.Elementwise(OMEGA), TypeError, "Elementwise: name is array"),
    (lambda: maps.GeneralizedRandomFeatures(OMEGA, fn=OMEGA), TypeError, "fn is array"),
    (lambda: maps.draw(4, 2, norms=OMEGA), TypeError, "draw: norms is array"),
    (lambda: maps.draw(4, 2, orthogonal=1), TypeError, "draw: orthogonal is 1; expected True"),
    (lambda: maps.draw(4, 2, rng=-1), ValueError, "draw: rng is -1; expected a generator"),
    (lambda: maps.draw(4, 2, rng=1.5), TypeError, "draw: rng is 1.5; expected a generator"),
    (lambda: maps.PositiveRandomFeatures(OMEGA)(np.ones((3, 5))), ValueError, "x has shape"),
    (lambda: maps.DPFP().backward(np.ones((3, 5)), np.ones((3, 5))), ValueError, "grad has shape"),
    (lambda: maps.SumNormalized("elu"), TypeError, "feature_map is 'elu'"),
    (lambda: maps.FeedforwardKernel([]), ValueError, "weights is empty"),
    (lambda: maps.FeedforwardKernel(OMEGA), TypeError, "weights is not a list"),
    (lambda: maps.FeedforwardKernel([()]), ValueError, "has 0 arrays"),
    (lambda: maps.FeedforwardKernel([(OMEGA,)]), ValueError, r"weights\[0\]\[0\] has shape"),
    (
        lambda: maps.FeedforwardKernel([(np.eye(4), np.ones((4, 2)), np.ones((3, 4)))]),
        ValueError,
        r"weights\[0\]\[2\] has shape \(3, 4\); expected \(2, 4\)",
    ),
    (lambda: maps.FeedforwardKernel.glu(0, 4), ValueError, "heads is 0"),
    (lambda: maps.FeedforwardKernel.glu(2, 4, rng="a"), TypeError, "Kernel: rng is 'a'"),
    (lambda: maps.FeedforwardKernel.aoglu(2, "4"), TypeError, "Kernel: dim is '4'"),
    (lambda: maps.FeedforwardKernel.glu(2, 4)(np.ones((3, 5, 4))), ValueError, "x has shape"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[x[2] for x in BAD])
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_get():
    assert maps.get("dpfp") == maps.DPFP()
    phi = maps.DPFP(2)
    assert maps.get(phi) is phi
    assert linattn.feature_maps is maps


def test_parameters_beyond_float32():
    """Of use with float64; an error with numbers that are computed in float32."""
    x = np.ones((2, D))
    for phi, name in (
        (maps.DPFP(eps=1e300), "eps"),
        (maps.get("elu").normalized(eps=1e300), "eps"),
        (maps.RandomFourierFeatures.sample(D, 4, temperature=1e300), "temperature"),
    ):
        assert np.isfinite(phi(x)).all()
        for dtype in ("f4", "f2"):
            with pytest.raises(ValueError, match=rf"{name} is 1e\+300.*finite in float32"):
                phi(x.astype(dtype))
