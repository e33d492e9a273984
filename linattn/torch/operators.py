"""The operators of linattn on CPU tensors, differentiable.

They are made from the NumPy functions: names, parameters but for ``out``, and docstrings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import linattn

from .._bridge import made, recurrences
from .._bridges import TORCH
from ._descriptions import OTHERS
from ._initial import initial_state as _initial_state
from ._operator import OPERATORS

if TYPE_CHECKING:
    from .._signatures.torch import *  # noqa: F403

_INITIAL_STATE = """
    >>> import torch, linattn.torch
    >>> q = k = v = torch.ones(2, 4)
    >>> state = linattn.torch.initial_state(q, k, v, operator="step")
    >>> o, state = linattn.torch.step(q, k, v, state, in_place=True)
    >>> state.s.shape, state.z[0]
    (torch.Size([2, 4, 4]), tensor([2., 2., 2., 2.]))
    """


def _others() -> Iterator[Any]:
    """The functions that are not of recurrences."""
    for description in OTHERS:
        operator, names = OPERATORS[description.name], [x.name for x in description.layout.operands]
        example = TORCH.examples["forward"].format(
            function=f"{TORCH.public}.{operator.name}", operands=description.example
        )
        function = getattr(linattn, operator.name)
        yield made(function, TORCH, operator.forward, names, example=example)
        if description.step:
            function = getattr(linattn, description.step_name)
            example = description.step_example
            yield made(function, TORCH, operator.step, names, example=example)
    yield made(linattn.initial_state, TORCH, _initial_state, example=_INITIAL_STATE)


_functions = recurrences(
    TORCH,
    forward=lambda r: OPERATORS[r.name].forward,
    step=lambda r: OPERATORS[r.name].step,
) | {f.__name__: f for f in _others()}
globals().update(_functions)
__all__ = [*_functions]
