"""Operands of the tests of linattn.jax, and how results are compared.

The cases are those of the table; `named` are a case's operands without the cotangent.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from bounds import close
from operands import dims, given, make
from states import flat
from table import ALL, COMPLEX, allowed, first_of

import linattn

N, D, M = 8, 4, 5
#: A case of each operator, and a scan of complex numbers.
EACH_OPERATOR = [*first_of(ALL), *COMPLEX[:1]]
#: Lengths of ``case.operands((2,), 9)``, and those of Q, K and V.
SEQUENCES = {"key_lengths": np.array([9, 3]), "cu_seqlens": np.array([0, 4, 4, 9])}
LENGTHS = np.array([[8, 0, 3], [5, 8, 1]])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def _drawn(name):
    sizes, rng = {"n": N, "s": N, "d": D, "m": M}, np.random.default_rng(0)
    return given(name, make(dims(name), sizes, rng, lead=(2, 3)))[0]


Q, K, V, G, BETA = _drawn("gated_delta")
X = np.ones((2, 4, 3))
PHI = linattn.feature_maps.RandomFourierFeatures.sample(D, 6, rng=0)


def conjugate(tree):
    """JAX's cotangents of complex numbers are the conjugates of the package's."""
    return jax.tree.map(jnp.conj, tree)


def named(case, operands):
    return {name: operands[name] for name in case.letters}


def takes(case, option):
    return option in inspect.signature(getattr(linattn, case.name)).parameters


def compare(actual, expected, tolerance=1e-13):
    """Arrays of one shape and dtype, within a part of their own largest entry."""
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        close(np.asarray(x), np.asarray(y), atol=tolerance * max(abs(np.asarray(y)).max(), 1e-3))


def near(result, expected):
    """Within roundings of the largest entry of all, as XLA may sum in another order."""
    arrays = [np.asarray(x) for x in jax.tree.leaves(result)]
    for x, y in zip(arrays, flat(expected), strict=True):
        assert x.shape == y.shape
        assert (abs(x - y) <= allowed(*flat(expected))).all()
