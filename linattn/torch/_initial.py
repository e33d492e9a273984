"""The state before the first token, as tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import _initial
from .._check import shape_alone
from .._state import State
from . import _maps, _tensors
from ._operator import OPERATORS
from ._tensors import work_dtype


def initial_state(
    *operands: Any, operator: str, feature_map: Any, normalize: bool, cu_seqlens: Any
) -> State:
    """`linattn.initial_state` of tensors."""
    name = _initial.NAME
    recurrence, whole = _initial.recurrence_of(operator, len(operands) - 3)
    described = OPERATORS[recurrence.name].operands
    args = _tensors.promoted(name, described, operands)
    for operand, x in zip(described, args, strict=False):
        if isinstance(x, Tensor):
            _tensors.check(name, operand.name, x)
    phi = _maps.resolve(name, feature_map)
    k, v = args[1:3]
    dtype = work_dtype(v.dtype)

    def features(d: int) -> int:
        if isinstance(phi, (str, _maps.TensorMap)):
            return d if isinstance(phi, str) else phi.features(d)
        one = k[..., :1, :] if whole else k[..., None, :]
        with torch.no_grad():
            return int(phi(one.to(dtype)).shape[-1])

    def full(shape: Any, value: float, _: Any = None) -> Tensor:
        return v.new_full(shape, value, dtype=dtype)

    rescaled = isinstance(phi, _maps.TensorMap) and phi.rescaled
    if not torch.compiler.is_compiling():
        return _initial.state_of(
            tuple(map(shape_alone, args)), operator, features, full, normalize=normalize,
            cu_seqlens=cu_seqlens, rescaled=rescaled,
            unmapped=None if isinstance(phi, str) else phi,
        )  # fmt: skip
    # Sizes may be symbols, which NumPy's checks cannot read.
    named = {x.name: y for x, y in zip(described, args, strict=False)}
    lead, sizes = OPERATORS[recurrence.name].shape(named, step=not whole)
    if cu_seqlens is not None:
        lead = (*lead, len(cu_seqlens) - 1)
    z = (*lead, features(sizes["d"]))
    s = full((*z, sizes["m"]), 0.0)
    if not (recurrence.normalizer and normalize):
        return State(s)
    return State(s, full(z, 0.0), full(z, -math.inf) if rescaled else None)
