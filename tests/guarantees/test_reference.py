"""What twins do alone; their values are those of the kernels, and test_adjoint.py has their
gradients."""

import numpy as np
import pytest
from bounds import close
from states import assert_same

from linattn.reference import delta_rule as ref_delta
from linattn.reference import linear as ref
from linattn.reference import maps
from linattn.reference import softmax as ref_softmax

EPS = np.finfo(float).eps
STEP = 1e-30  # a complex step has no cancellation, so it can be as small as one likes


@pytest.mark.parametrize("feature_map", maps.MAPS)
def test_derivative_of_map(feature_map):
    phi = maps.get(feature_map)
    x = np.array([-750.0, -30.0, -1.0, -1e-9, 1e-9, 0.5, 30.0, 700.0])
    slope = phi(x + 1j * STEP).imag / STEP
    close(phi.backward(x, np.ones_like(x)), slope, atol=0, rtol=1e-14)


def test_maps_at_the_edges():
    x = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan])
    for name, at in {
        "identity": [-np.inf, 0, 0, np.inf, np.nan],
        "relu": [0, 0, 0, np.inf, np.nan],
        "elu": [0, 1, 1, np.inf, np.nan],
        "softplus": [0, np.log(2), np.log(2), np.inf, np.nan],
        "exp": [0, 1, 1, np.inf, np.nan],
    }.items():
        close(maps.get(name)(x), at, atol=0, rtol=1e-15)
    assert maps.get("relu").backward(np.zeros(1), np.ones(1)) == 0


def test_dpfp_is_its_definition():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 4))
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    y = np.array([[row[j] * row[(j - i) % 8] for i in (1, 2, 3) for j in range(8)] for row in r])
    close(maps.DPFP(nu=3, normalize=False)(x), y, atol=0, rtol=4 * EPS)
    mean = y / (y.sum(-1, keepdims=True) + 1e-6)
    close(maps.DPFP(nu=3)(x), mean, atol=0, rtol=y.shape[-1] * EPS)
    zero = np.zeros((2, 4))
    assert not maps.DPFP()(zero).any()
    assert not maps.DPFP().backward(zero, np.ones((2, 8))).any()


def test_longdouble_and_complex_are_kept():
    x = np.ones((2, 3))
    for dtype in (np.longdouble, np.complex128):
        assert ref.causal(x, x.astype(dtype), x).dtype == dtype
        assert ref.noncausal(x, x, x.astype(dtype)).dtype == dtype
    assert ref.causal(*3 * [x.astype("f4")]).dtype == np.float64


def test_strengths_in_padding_do_not_exist():
    rng = np.random.default_rng(0)
    q, v, g = (rng.standard_normal((4, width)) for width in (3, 5, 5))
    beta = rng.random(4)
    padded = np.where(np.arange(4) < 2, beta, np.nan)
    for f, rest in ((ref_delta.delta, ()), (ref_delta.delta_backward, (g,))):
        clean = f(q, q, v, beta, *rest, key_lengths=2)
        assert_same(f(q, q, v, padded, *rest, key_lengths=2), clean)


def test_no_features_at_all():
    """Scores are 0, whatever the scale."""
    x, v = np.ones((3, 0)), np.arange(6.0).reshape(3, 2)
    close(ref_softmax.softmax_attention(x, x, v), np.tile(v.mean(0), (3, 1)), rtol=1e-15, atol=0)
