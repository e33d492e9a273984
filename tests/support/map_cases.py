"""Operands for maps that are objects, and an exact reference for positive features."""

import numpy as np
from bounds import FORWARD_MEAN, FORWARD_SUM

import linattn
from linattn import feature_maps as maps

D = 6
FORWARD = {"causal": linattn.causal, "noncausal": linattn.noncausal}
BACKWARD = {"causal": linattn.causal_backward, "noncausal": linattn.noncausal_backward}
POSITIVE = [maps.PositiveRandomFeatures.sample(D, 9, hyperbolic=h, rng=2) for h in (False, True)]


def operands(n=40, dtype=np.float64, scale=1.0):
    rng = np.random.default_rng(3)
    q, k, v, g = (rng.standard_normal((2, 3, n, D)).astype(dtype) for _ in range(4))
    return dtype(scale) * q, dtype(scale) * k, v, g


def exact(q, k, v, phi, causal):
    """The quotient by logarithms in long double with eps = 0, and its error bound in units of u.

    An exponent x may be off by u times |x|'s terms made positive, e, which changes the quotient o
    by sum_j p_j e_j |v_j - o|, which is 0 if one key has all the weight.
    """
    q, k, v = (x.astype(np.longdouble) for x in (q, k, v))
    omega = np.concatenate([phi.omega, -phi.omega], 1) if phi.hyperbolic else phi.omega
    root = np.sqrt(np.longdouble(phi.temperature))
    square = ((root * k) ** 2).sum(-1, keepdims=True) / 2
    pairs = lambda x, y: x[..., :, None, :] + y[..., None, :, :]  # noqa: E731
    logs = pairs(root * q @ omega, root * k @ omega - square)
    e = pairs(root * abs(q) @ abs(omega), root * abs(k) @ abs(omega) + square)
    if causal:
        logs = np.where(np.tri(q.shape[-2], dtype=bool)[..., None], logs, -np.inf)
    p = np.exp(logs - logs.max((-1, -2), keepdims=True))
    p /= p.sum((-1, -2), keepdims=True)
    o = p.sum(-1) @ v
    moved = [
        (p * e).sum(-1) * abs(v[..., None, :, c] - o[..., c, None]) for c in range(v.shape[-1])
    ]
    roundings = 2 * FORWARD_MEAN * (p.sum(-1) @ abs(v)) + FORWARD_SUM * np.stack(moved, -1).sum(-2)
    return o.astype(float), roundings.astype(float)
