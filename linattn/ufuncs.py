"""The gufuncs, each ``isinstance(f, numpy.ufunc)``, with ``out=``, ``axes=``, ``dtype=``,
broadcasting and ``__array_ufunc__``.

``causal_elu(q, k, v, scale, eps)`` is `linattn.causal` with the map elu and the normaliser, and
``causal_elu_sum(q, k, v, scale)`` the same without the normaliser.  ``noncausal``,
``causal_backward``, ``noncausal_backward`` and ``step`` have the same forms, with every fused map.
The ``_state`` and ``_keys`` forms also take key counts, and the ``_state`` forms r sequences packed
along n, each with its initial and final state.  ``state_elu(k, v)`` and ``state_elu_sum(k, v)`` are
the sums over all keys.

``delta_identity(q, k, v, beta, scale)`` is `linattn.delta` with one strength per token, and
``delta_channels_identity`` the same with one per value channel, beta (n, m).  There are also
``delta_backward_identity(q, k, v, beta, grad_out, scale)``,
``delta_step_identity(q, k, v, beta, scale, s0)`` and the ``_state`` forms.

``gated_identity(q, k, v, g, scale)`` is `linattn.gated` with one gate per token,
``gated_key_channels_identity`` with one per key channel, g (n, d), and
``gated_bonus_identity(q, k, v, g, bonus, scale)`` with a bonus (d).  They have ``_state`` and
``_backward`` forms, where the gradient of the bonus is (r, d) for r packed sequences, and
``gated_step_identity(q, k, v, g, scale, s0)``.

``gated_delta_identity(q, k, v, g, beta, scale)`` is `linattn.gated_delta` with one gate and one
strength per token.  The suffixes ``_key_channels``, ``_channels`` and ``_erase``, in this order,
stand for a gate per key channel, a strength per value channel, and erase keys after beta, (n, d).
The names of operators without a map end before it.  All have ``_state``, ``_backward`` and
``_step`` forms.

``causal``, ``delta``, ``gated``, ``gated_delta`` and their gradients also have forms with
``_block``, after the suffixes of operands: ``causal_block_elu(q, k, v, scale, eps, block)``, with
so many tokens in each block.

``causal_conv1d(x, weight, silu)`` is `linattn.causal_conv1d`, with silu 0 or 1, and
``causal_conv1d_bias(x, weight, bias, silu)`` the same with a bias.

Each docstring lists the operands with their shapes.  Indices out of range are clipped.
"""

from __future__ import annotations

import threading as _threading
from typing import TYPE_CHECKING

from ._core.gufuncs import ufuncs as _ufuncs
from .operators.gufunc_docs import document as _document

if TYPE_CHECKING:
    import numpy as np

__all__ = sorted(name for name in _ufuncs.names if not name.startswith("_"))
_names = frozenset(__all__)
_one_thread = _threading.Lock()


def __getattr__(name: str) -> np.ufunc:
    if name not in _names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _one_thread:
        f = globals()[name] = _document(_ufuncs[name])
    return f


def __dir__() -> list[str]:
    return __all__
