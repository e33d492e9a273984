"""One token and a state in fla's layouts, as a step of an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._call.recurrence import Recurrence
from ..._states.state_arrays import State
from ...operators.registry import RECURRENCES
from .. import operators
from .._core.direct import direct

#: The step of each operator of linattn.torch that has one.
STEPS: dict[Any, Callable[..., Any]] = {
    operators.causal: operators.step,
    operators.delta: operators.delta_step,
    operators.gated: operators.gated_step,
    operators.gated_delta: operators.gated_delta_step,
    operators.dplr: operators.dplr_step,
}


def decode(
    operator: Callable[..., Any],
    tokens: Sequence[Tensor],
    s: Tensor,
    *,
    groups: int,
    v_first: bool,
    in_place: bool,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """The output [B, 1, HV, V] of a token, and the state after it.

    The state is ``s`` itself, if it was written to, which ``in_place`` allows.  The memory of a
    new state has keys first, also if its axes have values first: then the next step need not
    transpose it.
    """
    if not torch.compiler.is_compiling():
        bonus = {x: y for x, y in options.items() if x == "bonus"}
        recurrence = RECURRENCES[operator.__name__]
        result = direct(
            partial(_decode, recurrence, groups=groups, v_first=v_first, in_place=in_place),
            tokens, {"s": s} | bonus, {x: y for x, y in options.items() if x != "bonus"},
        )  # fmt: skip
        if result is not NotImplemented:
            return result
    operands = [x[:, 0] for x in tokens]
    start = s.mT if v_first else s
    if groups > 1:
        operands[:2] = (x.unsqueeze(2) for x in operands[:2])
        operands[2:] = (x.unflatten(1, (-1, groups)) for x in operands[2:])
        start = start.unflatten(1, (-1, groups))
    o, (after, *_) = STEPS[operator](
        *operands, State(start), in_place=in_place and not v_first, **options
    )
    if groups > 1:
        o, after = o.flatten(1, 2), after.flatten(1, 2)
    return o.unsqueeze(1), after.mT if v_first else after


def _decode(
    r: Recurrence, tokens: tuple[Any, ...], *, s: Any, bonus: Any = None, groups: int,
    v_first: bool, in_place: bool, **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The same on arrays, whose views take a tenth of the time of tensors' views."""
    start = s.swapaxes(-1, -2) if v_first else s
    batch, heads = start.shape[:2]
    copied = not start.flags.c_contiguous
    if copied:
        start = start.copy()
    if groups == 1:
        operands = [x[:, 0] for x in tokens]
    else:
        split = batch, heads // groups, groups
        operands = [x[:, 0, :, None] for x in tokens[:2]]
        operands += [x.reshape(split + x.shape[3:]) for x in tokens[2:]]
        start = start.reshape(split + start.shape[2:])
    if bonus is not None:
        operands.append(bonus)
    operands += [None] * (len(r.operands) - len(operands))  # optional ones are last
    o, (after, *_) = r.step(tuple(operands), State(start), in_place=in_place or copied, **options)
    o = o.reshape(batch, 1, heads, -1)
    if in_place and not copied:
        return o, s
    after = after.reshape(batch, heads, *after.shape[-2:])
    return o, after.swapaxes(-1, -2) if v_first else after
