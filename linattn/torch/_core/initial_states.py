"""The state before the first token, as tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.checks import shape_alone
from ...operators import initial
from . import conversions, map_texts
from .conversions import work_dtype
from .operator import OPERATORS


def initial_state(
    *operands: Any, operator: str, feature_map: Any, normalize: bool, cu_seqlens: Any
) -> Any:
    """`linattn.initial_state` of tensors."""
    name, operands = initial.NAME, initial.given(*operands)
    recurrence, whole = initial.recurrence_of(operator, len(operands))
    described = OPERATORS[recurrence.name]
    rows, complex_too = described.operands[: len(operands)], described.complex_too
    args = conversions.promoted(name, rows, operands, complex_too=complex_too)
    for operand, x in zip(rows, args, strict=True):
        if isinstance(x, Tensor):
            conversions.check(name, operand.name, x, complex_too=complex_too)
    phi = map_texts.resolve(name, feature_map)
    values = args[described.values]
    dtype = work_dtype(values.dtype)

    def features(d: int) -> int:
        if isinstance(phi, (str, map_texts.TensorMap)):
            return d if isinstance(phi, str) else phi.features(d)
        k = args[1]
        one = k[..., :1, :] if whole else k[..., None, :]
        with torch.no_grad():
            return int(phi(one.to(dtype)).shape[-1])

    def full(shape: Any, value: float) -> Tensor:
        return values.new_full(shape, value, dtype=dtype)

    if torch.compiler.is_compiling():  # sizes may be symbols, which NumPy's checks cannot read
        named = {x.name: y for x, y in zip(rows, args, strict=True)}
        lead, sizes = described.shape(named, step=not whole)
        lead = lead if cu_seqlens is None else (*lead, len(cu_seqlens) - 1)
    else:
        shapes = tuple(shape_alone(x) for x in args)
        unmapped = None if isinstance(phi, str) else phi
        _, call, lead = initial.read(shapes, operator, unmapped, cu_seqlens)
        sizes = call.fit.sizes
    rescaled = isinstance(phi, map_texts.TensorMap) and phi.rescaled
    cores = recurrence.cores(sizes, normalize, *lead, features=features, rescaled=rescaled)
    return recurrence.public(recurrence.start(full, cores))
