"""The operators of linattn on CPU tensors, differentiable.

They are made from the NumPy functions: names, parameters but for ``out``, and docstrings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import linattn

from .._bridges.bridge import made, recurrences
from .._bridges.rows import TORCH
from ._core import conv_update, fused_steps
from ._core.descriptions import OTHERS
from ._core.initial_states import initial_state as _initial_state
from ._core.operator import OPERATORS

if TYPE_CHECKING:
    from .._signatures.torch import *  # noqa: F403

#: Steps that are faster than those of `OPERATORS`, where there are any.
_STEPS = {"causal_conv1d": conv_update.step}
_INITIAL_STATE = """
    >>> import torch, linattn.torch
    >>> q = k = v = torch.ones(2, 4)
    >>> state = linattn.torch.initial_state(q, k, v, operator="step")
    >>> o, state = linattn.torch.step(q, k, v, state, in_place=True)
    >>> state.s.shape, state.z[0]
    (torch.Size([2, 4, 4]), tensor([2., 2., 2., 2.]))
    """


_FUSED = {
    "fused_gated_delta_step": """
    >>> import torch, linattn.torch
    >>> state = linattn.FusedState(None, torch.zeros(1, 2, 3))
    >>> x = torch.tensor([3.0, 4.0, 3.0, 4.0, 1.0, 2.0, 3.0])  # q and k of 2, v of 3
    >>> one = torch.zeros(1)
    >>> o, state = linattn.torch.fused_gated_delta_step(
    ...     x, one, one, state, A_log=one, dt_bias=one, in_place=True
    ... )
    >>> o
    tensor([0.5000, 1.0000, 1.5000])
    """,
    "fused_gated_step": """
    >>> import torch, linattn.torch
    >>> state = linattn.FusedState(None, torch.ones(1, 2, 3))
    >>> x = torch.tensor([1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 1.0])  # v of 3, k and q of 2
    >>> one = torch.zeros(1)
    >>> o, state = linattn.torch.fused_gated_step(x, one, state, A_log=one, dt_bias=one)
    >>> o
    tensor([0.5000, 0.5000, 0.5000])
    """,
}


def _others() -> Iterator[Any]:
    """The functions that are not of recurrences."""
    for description in OTHERS:
        operator, names = OPERATORS[description.name], [x.name for x in description.layout.operands]
        example = TORCH.examples["forward"].format(
            function=f"{TORCH.public}.{operator.name}",
            operands=description.example,
            shape="3, 2",
            result="3, 2",
        )
        function = getattr(linattn, operator.name)
        yield made(function, TORCH, operator.forward, names, example=example)
    for name, step in fused_steps.STEPS.items():
        yield made(getattr(linattn, name), TORCH, step, step.first, example=_FUSED[name])
    yield made(linattn.initial_state, TORCH, _initial_state, example=_INITIAL_STATE)


_functions = recurrences(
    TORCH,
    forward=lambda r: OPERATORS[r.name].forward,
    step=lambda r: _STEPS.get(r.name, OPERATORS[r.name].step),
) | {f.__name__: f for f in _others()}
globals().update(_functions)
__all__ = [*_functions]
