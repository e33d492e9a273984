"""Calls of recurrences that PyTorch need not see: plain tensors, and no gradient.

They go from the tensors' memory to NumPy's functions.  The operators of PyTorch, which convert
operands, differentiate and let themselves be traced, take 10 us more, as long as a step of 32 heads
of 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import increment_version

from .._linattn import fast_step
from .._operator import MAPS, RECURRENCES
from .._state import State
from . import _options, _tensors
from ._descriptions import Description
from ._library import is_direct, name_of
from ._tensors import array, maybe_array, tensor, threads, work_dtype


class Direct:
    """The direct calls of an operator.

    Both methods return None if a call needs the operators of PyTorch, or if anything is wrong with
    it: these have the messages.
    """

    def __init__(self, description: Description, values: int) -> None:
        d = description
        self._operands, self._values, self._forward = d.layout.operands, values, d.forward
        recurrence = RECURRENCES.get(d.name)
        self._has_forward = recurrence is not None and not d.layout.elementwise
        # Without those of a map, which is no tensor here.
        options = [x for x in d.options if name_of(x) not in ("feature_map", "omega")]
        self._kinds = tuple((name_of(x), _options.check_of(x)[0]) for x in options)
        #: The number of the step, if `fast_step` takes all of its options.
        self._step: int | None = None
        if recurrence is not None and recurrence.scaled and not recurrence.flags["step"]:
            self._step = getattr(recurrence, "step_op", None)

    def forward(self, operands: Sequence[Any], options: Mapping[str, Any]) -> Tensor | None:
        """The output for all tokens, without states."""
        phi = options.get("feature_map", "identity")
        if not (self._has_forward and type(phi) is str and phi in MAPS and is_direct(operands)):
            return None
        for option, kind in self._kinds:
            if type(options.get(option)) is not kind:
                return None
        try:
            arrays = self._arrays(operands)
        except (AttributeError, TypeError, RuntimeError):
            return None
        if arrays is None:
            return None
        with threads():
            return tensor(self._forward(arrays, **options))

    def _arrays(self, operands: Sequence[Any]) -> tuple[Any, ...] | None:
        """The operands as arrays, if they have the dtypes of one call."""
        like = operands[self._values]
        if like.dtype not in _tensors.REAL or not like.is_contiguous():
            return None
        states = work_dtype(like.dtype)
        for operand, x in zip(self._operands, operands, strict=True):
            if x is None and operand.optional:
                continue
            if x.dtype is not (states if operand.state_dtype else like.dtype):
                return None
        return tuple([maybe_array(x) for x in operands])

    def step(
        self,
        operands: Sequence[Any],
        state: Any,
        in_place: Any,
        *,
        feature_map: Any = "identity",
        normalize: Any = False,
        scale: Any = 1.0,
        eps: Any = 0.0,
        **others: Any,
    ) -> tuple[Tensor, State] | None:
        """The output of one token, and the state after it."""
        if self._step is None or type(state) is not State or state.log_scale is not None:
            return None
        s, z, _ = state
        if not is_direct((*operands, s, z)):
            return None
        try:
            arrays = tuple([maybe_array(x) for x in operands])
            fields = array(s), maybe_array(z)
        except (AttributeError, TypeError, RuntimeError):
            return None
        with threads():
            result = fast_step(
                self._step, arrays, *fields, in_place, feature_map, normalize, scale, eps
            )
        if result is NotImplemented:
            return None
        o = tensor(result[0])
        if not in_place:
            return o, State(*[None if x is None else tensor(x) for x in result[1:]])
        increment_version(s if z is None else (s, z))
        return o, state
