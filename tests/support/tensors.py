"""Operands and states of the table of cases as tensors, and results as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from table import Case, apply

import linattn.torch


def tensors(operands: dict[str, np.ndarray], *, requires_grad: bool = False) -> dict[str, Any]:
    return {name: torch.tensor(x, requires_grad=requires_grad) for name, x in operands.items()}


def tensor_state(state: Any, *, requires_grad: bool = False) -> Any:
    return apply(lambda x: torch.tensor(x, requires_grad=requires_grad), state)


def leaves(x: Any) -> list[torch.Tensor]:
    """All tensors of a result, those of states too."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [z for y in x if y is not None for z in leaves(y)]


def arrays(x: Any) -> list[np.ndarray]:
    """The same as arrays."""
    return [y.detach().numpy() for y in leaves(x)]


def step(case: Case, operands: dict[str, torch.Tensor], t: int, state: Any, **more: Any) -> Any:
    """The step on token t."""
    now = case.token(operands, t)
    return getattr(linattn.torch, case.step)(**now, state=state, **case.step_options, **more)
