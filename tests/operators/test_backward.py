"""Gradients of causal and noncausal against complex steps of the forward twin."""

import numpy as np
import pytest
from bounds import close
from cases import BACKWARD, Case, make

import linattn
from linattn.reference import linear as ref


def _directional(forward, operands, directions, options):
    """J t by a complex step: exact to rounding, through nothing but the forward twin."""
    moved = [x + 1e-30j * t for x, t in zip(operands, directions, strict=True)]
    return forward(*moved, **options).imag / 1e-30


@pytest.mark.parametrize("operator", BACKWARD)
def test_every_entry_by_complex_step(operator):
    """Not only along a direction: each entry of each gradient, at a small size."""
    forward = getattr(ref, operator.removesuffix("_backward"))
    case = Case(operator, 6, 3, 2, dtype="float64", scale=0.4, eps=0.01)
    *operands, g = make(case)
    grads = getattr(linattn, operator)(*operands, g, **case.options)
    for which, grad in enumerate(grads):
        for index in np.ndindex(grad.shape):
            directions = [np.zeros(x.shape) for x in operands]
            directions[which][index] = 1
            jt = _directional(forward, operands, directions, case.options)
            close(grad[index], (g * jt).sum(), rtol=1e-11, atol=1e-13)


def test_adjoint_in_v_by_the_kernels_alone():
    """The operators are linear in v: <g, f(q, k, t)> = <dv, t>, with no twin in between."""
    rng = np.random.default_rng(9)
    for operator in BACKWARD:
        forward = getattr(linattn, operator.removesuffix("_backward"))
        case = Case(operator, 200, 16, 24, lead=(2,), dtype="float64")
        q, k, v, g = make(case)
        t = rng.standard_normal(v.shape)
        *_, dv = getattr(linattn, operator)(q, k, v, g, **case.options)
        left, right = g * forward(q, k, t, **case.options), dv * t
        assert abs(left.sum() - right.sum()) <= 1e-12 * (abs(left).sum() + abs(right).sum())


def test_derivative_at_the_kink():
    """relu' (0) = 0 exactly, of either sign of zero; elu' (0) = 1."""
    zero = np.array([[0.0, -0.0]])
    one = np.ones((1, 2))
    g = np.ones((1, 1))
    options = {"normalize": False}
    for f in (linattn.causal_backward, linattn.noncausal_backward):
        dq, dk, _ = f(zero, one, g, g, feature_map="relu", **options)
        assert not dq.any()
        _, dk, _ = f(one, zero, g, g, feature_map="relu", **options)
        assert not dk.any()
        dq, dk, _ = f(zero, zero, g, g, feature_map="elu", **options)
        np.testing.assert_array_equal(dq, one)
        np.testing.assert_array_equal(dk, one)
