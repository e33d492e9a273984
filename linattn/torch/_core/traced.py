"""Calls that torch.compile traces, of operands and options that need no conversion.

A compiled function checks at each call all that Python code read while it was traced: modules,
attributes, defaults, built-in functions.  If `TensorOperator` alone is traced, a step has hundreds
of these checks.  The methods here read little; what a call needs is decided by functions into which
torch.compile does not look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._call.tables import MAPS
from ..._states.state_arrays import State
from . import conversions, option_checks, private
from .conversions import work_dtype
from .descriptions import Description
from .library import Operator, name_of
from .private import constant


class Traced:
    """The calls of an operator in a graph.

    Both methods return None if a call needs a conversion, or if anything is wrong with it.
    """

    def __init__(
        self, description: Description, values: int, stateless: Operator, *steps: Operator
    ) -> None:
        self._description, self._values = description, values
        self._kinds = {name_of(x): option_checks.check_of(x)[0] for x in description.options}
        self._forward = stateless.op
        ops: list[Any] = [x.op for x in steps] or [None] * 3
        self._new_step, self._unrecorded_step, self._step_in_place = ops

    def forward(self, operands: Sequence[Any], options: Mapping[str, Any]) -> Tensor | None:
        """The output for all tokens, without states."""
        found = self._forward_arguments(_seen(operands), _kinds(options))
        if found is None:
            return None
        names, more = found
        o: Tensor = self._forward(*operands, *[options.get(x) for x in names], *more)
        return o

    def step(
        self, operands: Sequence[Any], state: Any, in_place: Any, options: Mapping[str, Any]
    ) -> tuple[Tensor, State] | None:
        """The output of one token, and the state after it."""
        if not self._has_state(type(state)):
            return None
        found = self._step_arguments(_seen(operands), _seen(state), in_place, _kinds(options))
        if found is None:
            return None
        names, count, recorded = found
        args = *operands, *[options.get(x) for x in names], *state[:count]
        if in_place:
            return self._step_in_place(*args), state
        o, s, *rest = self._new_step(*args) if recorded else self._unrecorded_step(*args)
        return o, type(state)(s, None if state[1] is None else rest[0])

    @constant
    def _has_state(self, kind: type) -> bool:
        return self._new_step is not None and kind is State

    @constant
    def _forward_arguments(
        self, operands: tuple[Any, ...], kinds: tuple[Any, ...]
    ) -> tuple[tuple[str, ...], tuple[None, ...]] | None:
        """The names of the options that follow the operands, and what follows these."""
        d = self._description
        if not self._plain(operands, dict(kinds)):
            return None
        return tuple(self._kinds), (None,) * (d.lengths + bool(d.fields) + d.blocks)

    @constant
    def _step_arguments(
        self, operands: tuple[Any, ...], state: tuple[Any, ...], in_place: Any,
        kinds: tuple[Any, ...],
    ) -> tuple[tuple[str, ...], int, bool] | None:  # fmt: skip
        """The names of the options that follow the operands, and the number of states' arrays.

        Last, whether autograd or anything else of PyTorch has to see the operator.
        """
        options = dict(kinds)
        if type(in_place) is not bool or not self._plain(operands, options):
            return None
        recorded = _is_recorded(operands + state)
        if in_place and recorded:
            return None
        states = work_dtype(operands[self._values][0])
        wanted = states, states if options.get("normalize") else None, None
        if any(dtype is not kind for (dtype, _), kind in zip(state, wanted, strict=True)):
            return None
        return tuple(self._kinds), len(self._description.fields), recorded

    def _plain(self, operands: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
        """Whether operands of these dtypes and options of these kinds need no conversion."""
        d, like = self._description, operands[self._values][0]
        if d.one_array or d.layout.elementwise or like not in conversions.REAL:
            return False
        for operand, (dtype, _) in zip(d.layout.operands, operands, strict=True):
            wanted = work_dtype(like) if operand.state_dtype else like
            if dtype is not wanted and not (dtype is None and operand.optional):
                return False
        for name, kind in self._kinds.items():
            given = options.get(name)
            if name == "omega":
                continue
            if not (given in MAPS if kind is str else given is kind or type(given) is kind):
                return False
        return True


def _is_recorded(seen: Sequence[Any]) -> bool:
    """Whether a call is differentiated, transformed, cast or exported."""
    return (
        (torch.is_grad_enabled() and any(requires_grad for _, requires_grad in seen))
        or private.is_transformed()
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_exporting()
        or torch.onnx.is_in_onnx_export()
    )


def _seen(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """For each, its dtype, and whether it requires a gradient; None for what is left out."""
    return *[
        (None, False) if x is None
        else (getattr(x, "dtype", False), getattr(x, "requires_grad", False))
        for x in tensors
    ],  # fmt: skip


def _kinds(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The names and values of options that are strings or flags, and the types of others."""
    return (*[(name, x if type(x) in (str, bool) else type(x)) for name, x in options.items()],)
