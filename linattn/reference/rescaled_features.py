"""NumPy twin of attention with positive random features that rescale as they go."""

import numpy as np

from .maps import Positive

Array = np.ndarray


def attention(
    q: Array, k: Array, v: Array, *, feature_map: Positive, eps: float, scale: float = 1.0,
    causal: bool = True,
) -> Array:  # fmt: skip
    """``o_i = scale N_i / (scale D_i + eps exp(c_i))``: ``N_i`` and ``D_i`` are sums of the terms
    ``exp(u_if + e_jf)``, times v_j in N, and c_i is the largest of these exponents.

    By logarithms, all terms at once: (n, s, f) numbers per head.  Float64, longdouble or
    complex128.
    """
    x, y = (feature_map.temperature**0.5 * x for x in (q, k))
    u = x @ feature_map.omega
    e = y @ feature_map.omega - (y * y).sum(-1, keepdims=True) / 2
    e = e - np.log(feature_map.omega.shape[1]) / 2
    exponents = u[..., :, None, :] + e[..., None, :, :]
    if causal:
        seen = np.tri(q.shape[-2], dtype=bool)[..., None]
        exponents = np.where(seen, exponents, -np.inf)
    flat = exponents.reshape(*exponents.shape[:-2], -1)
    c = np.take_along_axis(flat, flat.real.argmax(-1)[..., None], -1)
    weights = scale * np.exp(exponents - c[..., None]).sum(-1)
    return weights @ v / (weights.sum(-1, keepdims=True) + eps)
