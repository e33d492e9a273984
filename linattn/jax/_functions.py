"""Functions on JAX's arrays that are not recurrences: softmax attention and decays.

The docstrings of those that become public are their examples: all else is as NumPy's.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .._core.checks import number
from .._core.dtypes import work_dtype
from ..operators import decay
from ..operators.linformer import _operands as linformer_operands
from ..operators.softmax import _operands as softmax_operands
from . import _traced_checks
from ._arrays import promoted, summed
from ._kernel import Kernel, differentiable, gradients, run, spread

# --- softmax attention ------------------------------------------------------------------


def softmax_attention(q: Any, k: Any, v: Any, *, causal: Any, scale: Any) -> Any:
    """
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.eye(2)
    >>> linattn.jax.softmax_attention(x, x, x, scale=0.0)
    Array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    name = "softmax_attention"
    arrays = promoted(name, {"q": q, "k": k, "v": v})
    given = [_traced_checks.stand_in(x) for x in arrays]
    *_, numbers = softmax_operands(name, given[0], given[1], given[2], causal, scale)
    return run(_softmax(numbers), *arrays)[0]


def _softmax(numbers: tuple[float, ...]) -> Kernel:
    """softmax(scale q k^T) v; the numbers are scale, and 1.0 if it is causal."""
    return Kernel("softmax", "softmax_backward", numbers, ("nd", "sd", "sm"), "nm")


def linformer(q: Any, k: Any, v: Any, E: Any, F: Any, *, scale: Any) -> Any:
    """
    >>> import jax.numpy as jnp, linattn.jax
    >>> x, E = jnp.ones((6, 2)), jnp.full((6, 3), 1 / 6)
    >>> linattn.jax.linformer(x, x, x, E, E).shape
    (6, 2)
    """
    name = "linformer"
    arrays = promoted(name, {"q": q, "k": k, "v": v, "E": E, "F": F})
    *_, scale, _, _ = linformer_operands(name, *map(_traced_checks.stand_in, arrays), scale)
    dtype = arrays[0].dtype
    work = work_dtype(dtype)
    return _projected(_softmax((scale, 0.0)), *(x.astype(work) for x in arrays)).astype(dtype)


def _projected_gradient(softmax: Kernel, given: Any, grad: Any) -> Any:
    q, k, v, E, F = given
    inner = q, E.mT @ k, F.mT @ v
    found = zip(gradients(softmax, inner, (grad,)), inner, strict=True)
    dq, dkeys, dvalues = (summed(x, y.shape, y.dtype) for x, y in found)
    return dq, E @ dkeys, F @ dvalues, k @ dkeys.mT, v @ dvalues.mT


@differentiable(_projected_gradient)
def _projected(softmax: Kernel, q: Any, k: Any, v: Any, E: Any, F: Any) -> Any:
    """`softmax` of the keys ``E^T k`` and the values ``F^T v``."""
    return run(softmax, q, E.mT @ k, F.mT @ v)[0]


# --- decays -------------------------------------------------------------------------------


def log_decay(x: Any, A_log: Any, dt_bias: Any, *, lower_bound: Any) -> Any:
    """
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.array([-20.0, 0.0, 20.0])
    >>> linattn.jax.log_decay(x, 0.0, 0.0, lower_bound=-5).round(3)
    Array([-0. , -2.5, -5. ], dtype=float32)
    """
    x = jnp.asarray(x)
    A_log, dt_bias = (
        y if isinstance(y, (int, float)) else jnp.asarray(y) for y in (A_log, dt_bias)
    )
    given = [_traced_checks.stand_in(y) for y in (x, A_log, dt_bias)]
    arrays, _ = decay._operands("log_decay", given[0], given[1], given[2])
    dtype = jnp.result_type(x, A_log, dt_bias, float)
    shape = jnp.broadcast_shapes(*(jnp.shape(y) for y in (x, A_log, dt_bias)))
    wide = (jnp.asarray(y, work_dtype(dtype)) for y in (x, A_log, dt_bias))
    x, A_log, dt_bias = (y if y.shape == shape else spread(shape, y) for y in wide)
    z = x + dt_bias
    if lower_bound is None:
        return (-jnp.exp(A_log) * jnp.logaddexp(z, 0.0)).astype(dtype)
    bound = number("log_decay", "lower_bound", lower_bound, *arrays)
    return (bound / (1 + jnp.exp(-jnp.exp(A_log) * z))).astype(dtype)
