"""Calls of recurrences that PyTorch need not see: plain tensors, and no gradient.

They go from the tensors' memory to NumPy's functions.  The operators of PyTorch, which convert
operands, differentiate and let themselves be traced, take 10 us more, as long as a step of 32 heads
of 64.  Their own kernels compute steps in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor
from torch.autograd.graph import increment_version

from ..._call.recurrence import RECURRENCES
from ..._call.tables import MAPS
from ..._linattn import fast_step
from ..._states.state_arrays import State
from . import conversions, option_checks
from .conversions import array, arrays, tensor, threads, work_dtype
from .descriptions import Description
from .library import is_direct, name_of

#: What steps take besides their operands, and the values of what an operator lacks.
_OF_STEPS = {
    "s": None, "z": None, "log_scale": None, "omega": None, "feature_map": "identity",
    "normalize": False, "scale": 1.0, "eps": 0.0,
}  # fmt: skip
_LACKING = tuple(_OF_STEPS.values())


class Direct:
    """The direct calls of an operator.

    All methods return None if a call needs the operators of PyTorch, or if anything is wrong with
    it: these have the messages.
    """

    def __init__(self, description: Description, values: int) -> None:
        d = description
        self._operands, self._values, self._forward = d.layout.operands, values, d.forward
        recurrence = RECURRENCES.get(d.name)
        self._has_forward = recurrence is not None and not d.layout.elementwise
        # Without those of a map, which is no tensor here.
        options = [x for x in d.options if name_of(x) not in ("feature_map", "omega")]
        self._kinds = tuple((name_of(x), option_checks.check_of(x)[0]) for x in options)
        #: The number of the step, if `fast_step` takes all of its options.
        self._step: int | None = None
        if recurrence is not None and recurrence.scaled and not recurrence.flags["step"]:
            self._step = getattr(recurrence, "step_op", None)
        #: NumPy's step, if its state is one array.
        self._array_step: Any = d.step if d.one_array else None
        names = [*(x.name for x in self._operands), *map(name_of, d.options), *d.fields]
        self._of_step = itemgetter(*(
            names.index(name) if name in names else len(names) + i
            for i, name in enumerate(_OF_STEPS)
        ))  # fmt: skip

    def forward(self, operands: Sequence[Any], options: Mapping[str, Any]) -> Tensor | None:
        """The output for all tokens, without states."""
        phi = options.get("feature_map", "identity")
        if not (self._has_forward and type(phi) is str and phi in MAPS and is_direct(operands)):
            return None
        for option, kind in self._kinds:
            if type(options.get(option)) is not kind:
                return None
        try:
            given = self._arrays(operands)
        except (AttributeError, TypeError, RuntimeError):
            return None
        if given is None:
            return None
        with threads():
            return tensor(self._forward(given, **options))

    def _arrays(self, operands: Sequence[Any]) -> tuple[Any, ...] | None:
        """The operands as arrays, if they have the dtypes of one call."""
        like = operands[self._values]
        if like.dtype not in conversions.REAL or not like.is_contiguous():
            return None
        states = work_dtype(like.dtype)
        for operand, x in zip(self._operands, operands, strict=True):
            if x is None and operand.optional:
                continue
            if x.dtype is not (states if operand.state_dtype else like.dtype):
                return None
        return arrays(operands)

    def step(
        self, operands: Sequence[Any], state: Any, in_place: Any, options: Mapping[str, Any]
    ) -> tuple[Tensor, State | Tensor] | None:
        """The output of one token, and the state after it."""
        if self._array_step is not None:
            return self._step_of_array(operands, state, in_place, options)
        if self._step is None or type(state) is not State or state.log_scale is not None:
            return None
        s, z, _ = state
        if not is_direct((*operands, s, z)):
            return None
        result = self._fast_step(operands, s, z, in_place, **options)
        if result is None:
            return None
        if not in_place:
            o, s, z = result
            return o, State(s, z)
        increment_version(s if z is None else (s, z))
        return result[0], state

    def _step_of_array(
        self, operands: Sequence[Any], state: Any, in_place: Any, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor] | None:
        if type(state) is not Tensor or not is_direct((*operands, state)):
            return None
        try:
            given = self._arrays(operands)
            if given is None or state.dtype is not work_dtype(operands[self._values].dtype):
                return None
            with threads():
                o, s = self._array_step(given, array(state), in_place=in_place, **options)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return None  # nothing has been written
        if not in_place:
            return tensor(o), tensor(s)
        increment_version(state)
        return tensor(o), state

    def run_step(self, args: Sequence[Any], in_place: bool) -> tuple[Any, ...] | None:
        """The output, s and z of a step, whose arguments an operator of PyTorch has.

        A step in place returns no s and z.
        """
        if self._step is None:
            return None
        s, z, log_scale, omega, *options = self._of_step((*args, *_LACKING))
        if not (log_scale is None and omega is None):
            return None
        return self._fast_step(args[: len(self._operands)], s, z, in_place, *options)

    def _fast_step(
        self, operands: Sequence[Any], s: Tensor, z: Tensor | None, in_place: Any, *options: Any,
        **named: Any,
    ) -> tuple[Any, ...] | None:  # fmt: skip
        try:
            *given, s_array, z_array = arrays((*operands, s, z))
        except (AttributeError, TypeError, RuntimeError):
            return None
        found = self.compute_step(given, s_array, z_array, in_place, *options, **named)
        if found is None:
            return None
        if in_place:
            return tensor(found[0]), None, None
        return tuple([None if x is None else tensor(x) for x in found])

    def compute_step(
        self,
        operands: Sequence[Any],
        s: Any,
        z: Any,
        in_place: Any,
        feature_map: Any = "identity",
        normalize: Any = False,
        scale: Any = 1.0,
        eps: Any = 0.0,
    ) -> tuple[Any, ...] | None:
        """The output, s and z of a step, all of them arrays.

        Operands may leave out optional ones that are last.
        """
        assert self._step is not None
        given = tuple(operands)
        if len(given) < len(self._operands):
            given += (None,) * (len(self._operands) - len(given))
        with threads():
            result = fast_step(
                self._step, given, s, z, in_place, feature_map, normalize, scale, eps
            )
        return None if result is NotImplemented else result
