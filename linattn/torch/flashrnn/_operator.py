"""The states of sLSTM after each token, as an operator of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.gradient_sums import sum_all
from ..._core.gufuncs import internal_ufuncs, run
from .._core.direct import compute
from .._core.library import Operator


def _arrays(x: Any, R: Any, b: Any, state: Any) -> tuple[Any, ...]:
    return x, R, b, *(state[..., i, :, :] for i in range(4))


def _states(operands: Any) -> Any:
    return run(internal_ufuncs["slstm_states"], _arrays(*operands))[0]


def _gradients(operands: Any) -> Any:
    grad, *given = operands
    x, R, b, *state = _arrays(*given)
    dx, dR, db, *dstate = run(
        internal_ufuncs["slstm_states_backward"], (x, R, b, grad, *state)
    )  # fmt: skip
    return sum_all((dx, dR, db, *dstate), (x, R, b, *state))


def _forward(*args: Tensor) -> Tensor:
    y: Tensor = compute(_states, args, {}, {})
    return y


def _backward(*args: Tensor) -> tuple[Tensor, ...]:
    *grads, h, c, n, m = compute(_gradients, args, {}, {})
    return *grads, torch.stack((h, c, n, m), -3)


def _fake(x: Tensor, R: Tensor, b: Tensor, state: Tensor) -> Tensor:
    lead = torch.broadcast_shapes(x.shape[:-4], R.shape[:-4], b.shape[:-3], state.shape[:-3])
    return x.new_empty((*lead, *x.shape[-4:]))


def _gradient(args: Any, grads: Any) -> Any:
    return BACKWARD(*grads, *args)


_ARGUMENTS = ["Tensor x", "Tensor R", "Tensor b", "Tensor state"]
_RANKS = 4, 4, 3, 3

#: y (..., n, 4, heads, d) of x (..., n, 4, heads, d), R (..., 4, heads, d, d), b (..., 4, heads, d)
#: and the state before (..., 4, heads, d): h, c, n and m.  All of float32 or of float64.
STATES = Operator(
    "slstm_states", _ARGUMENTS, 1, _forward, _fake, called="flashrnn",
    ranks=lambda *axes: _RANKS, gradient=_gradient,
)  # fmt: skip
BACKWARD = Operator(
    "slstm_states_backward", ["Tensor grad", *_ARGUMENTS], 4, _backward,
    lambda grad, *args: tuple(map(torch.empty_like, args)), called="flashrnn",
    ranks=lambda *axes: (4, *_RANKS), like=("x", "R", "b", "state"),
)  # fmt: skip
