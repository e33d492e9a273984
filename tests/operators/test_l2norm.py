"""The map l2norm: rows over their norm, in every operator by its name and as an object.

Its values, gradients, states and packed sequences in all operators are in the tables of the other
files, where it is one of cases.MAPS.
"""

import numpy as np
import pytest
from bounds import close, excess
from cases import DTYPES
from isas import ISAS

from linattn import feature_maps
from linattn.reference import maps

PHI = feature_maps.get("l2norm")
TWIN = maps.MAPS["l2norm"]
SHAPES = [(5,), (1, 1), (3, 0), (0, 4), (7, 64), (2, 33, 65), (300, 20), (2, 3, 17, 100), (4, 600)]


def wide(x):
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def check(shape, dtype, phi=PHI, backward=PHI.backward):
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    X, G = wide(x), wide(g)
    u, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
    y, dx = phi(x), backward(x, g)
    assert y.dtype == dx.dtype == dtype
    assert excess(y, TWIN(X), 8 * u * abs(TWIN(X)) + tiny) <= 1
    size = abs(TWIN(X))
    terms = (abs(G) + (abs(G) * size).sum(-1, keepdims=True) * size) / TWIN._norm(X)
    assert excess(dx, TWIN.backward(X, G), 16 * u * terms + tiny) <= 1


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_the_twin(isa, name, dtype):
    isa(name)
    for shape in SHAPES:
        check(shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size_of_row(dtype):
    """Rows of zeros stay so; rows whose squares leave the range of the dtype have norm 1."""
    info = np.finfo(dtype)
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        np.testing.assert_array_equal(PHI(np.zeros((3, 4), dtype)), 0)
        for size in (float(info.max) / 8, float(info.max) ** 0.75, 64.0, 1e6):
            x = (np.array([[3.0, 4.0, 0.0], [0.0, -1.0, 0.0]]) / 5 * size).astype(dtype)
            expected = [[0.6, 0.8, 0], [0, -1, 0]]
            close(PHI(x), expected, atol=8 * float(info.eps) + (1e-8 if size == 64 else 0))
            dx = PHI.backward(x, np.ones_like(x)).astype(np.float64) * size
            close(dx, [[0.16, -0.12, 1], [5, 0, 5]], atol=2e-5)
        small = np.full((1, 4), float(info.tiny), dtype)
        close(PHI(small), 1e3 * small, atol=0, rtol=1e-6)


#: A map, or its gradient, with one thing wrong.
MUTANTS = {
    "another eps": {"phi": lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-4)},
    "eps on the norm": {"phi": lambda x: x / (np.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)},
    "no projection": {"backward": lambda x, g: g / np.sqrt((x * x).sum(-1, keepdims=True))},
    "projection on x": {
        "backward": lambda x, g: (
            (g - (g * x).sum(-1, keepdims=True) * x) / np.linalg.norm(x, axis=-1, keepdims=True)
        )
    },
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_ones_are_found(name):
    with pytest.raises(AssertionError):
        check((7, 64), "float64", **MUTANTS[name])
