"""Operators of linattn on tensors, each made from its description.

A description becomes operators of PyTorch: over all tokens without a state and with one, the
gradients of both, and the step, which returns a new state or writes to the given one.  All of them
call the operator's NumPy functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ..._call import exact
from ..._call.recurrence import given
from ..._call.tables import MAPS
from ..._call.whole_blocks import checked
from ..._core.checks import flag, shape_alone
from ..._states.state_arrays import ExactState, no_state
from ...operators.registry import RECURRENCES
from . import conversions, map_texts, option_checks, tensor_pools
from .computation import Computation
from .conversions import work_dtype
from .descriptions import OTHERS, Description, of_recurrence
from .direct import direct
from .library import Operator, name_of
from .signature import LOST
from .traced import Traced


class TensorOperator(Computation):
    """Forward and step of an operator on tensors, differentiable."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        d = description
        numbers = d.options[2 if self.mapped else 0 :]
        self._checks = tuple((name_of(x), *option_checks.check_of(x)) for x in numbers)
        self._typed = [i for i, x in enumerate(self.operands) if not x.state_dtype]
        self._cast = [x.name for x in self.operands if d.cast and not x.state_dtype]
        self.stateless, self._stateless_backward = self._sequence("", ())
        steps: tuple[Operator, ...] = ()
        if self.fields:
            self.stateful, self._stateful_backward = self._sequence("_state", self.fields)
            if d.carries:
                self.exact = self._forward("_exact", (*self.fields, LOST), constants=1)
            self.new_step, _, self.step_in_place = steps = self._steps()
        self._traced = Traced(d, self.values, self.stateless, *steps)

    def _sequence(self, suffix: str, fields: tuple[str, ...]) -> tuple[Operator, Operator]:
        """The operator over all tokens, and its gradient's."""
        grads = ["Tensor grad_out", *(f"Tensor? grad_{x}" for x in fields)]
        return self._forward(suffix, fields), Operator(
            f"{self.name}{suffix}_backward", grads + self._arguments(fields),
            self.count + len(fields), self.run_backward, self.fake_backward,
            called=self.name, ranks=self.ranks_backward, like=(*self.operand_names, *fields),
            complex_too=self.complex_too,
        )  # fmt: skip

    def _forward(self, suffix: str, fields: tuple[str, ...], constants: int = 0) -> Operator:
        """The operator over all tokens."""
        return Operator(
            self.name + suffix, self._arguments(fields), 1 + len(fields), self.run, self.fake,
            called=self.name, ranks=self.ranks, gradient=self.gradient, cast=self._cast,
            complex_too=self.complex_too, constants=constants,
        )  # fmt: skip

    def _arguments(self, fields: tuple[str, ...]) -> list[str]:
        return [*self.whole, *(f"Tensor? {x}" for x in fields)]

    def _steps(self) -> tuple[Operator, Operator, Operator]:
        """The step, the same where neither autograd nor autocast has to see it, and in place."""
        d, left_out = self.description, "" if self.description.one_array else "?"
        read = [*self.token, *(f"Tensor{left_out} {x}" for x in self.fields)]
        written = [f"Tensor({x}!){left_out} {y}" for x, y in zip("abcd", self.fields, strict=False)]
        fake: Any = partial(self.fake, step=True)
        made: Any = partial(
            Operator, called=d.step_name, ranks=partial(self.ranks, step=True),
            complex_too=self.complex_too,
        )  # fmt: skip
        results = 1 + len(self.fields)
        new = made(
            d.step_name, read, results, self.run_new_step, fake, gradient=self.step_gradient,
            cast=self._cast,
        )  # fmt: skip
        unrecorded = made(
            f"{d.step_name}_unrecorded", read, results, self.run_new_step, fake, recorded=False
        )
        in_place = made(
            f"{d.step_name}_", [*self.token, *written], 1, self.run_step_in_place,
            lambda *args: fake(*args)[0], cast=self._cast,
        )  # fmt: skip
        in_place.traced = self._traced_step_in_place
        return new, unrecorded, in_place

    def backward(self, args: Sequence[Any]) -> Operator:
        return self._stateful_backward if args[self.end :] else self._stateless_backward

    def _traced_step_in_place(self, *args: Any) -> Any:
        """The step in place, or a step and a copy of its state for ONNX, which writes nothing."""
        if not torch.onnx.is_in_onnx_export():
            return self.step_in_place.op(*args)
        o, *end = self.new_step(*args)
        for x, y in zip(args[self.options_end :], end, strict=True):
            if x is not None:
                x.copy_(y)
        return o

    # --- what users call ---------------------------------------------------------

    def forward(
        self,
        operands: Sequence[Any],
        *,
        key_lengths: Any = None,
        cu_seqlens: Any = None,
        initial_state: Any = None,
        return_state: Any = False,
        state_indices: Any = None,
        state_at: Any = None,
        block: Any = None,
        **options: Any,
    ) -> Any:
        """The output, and the state after the last token where it is asked for."""
        carried = self._carries(return_state) or type(initial_state) is ExactState
        there = given(
            key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
            state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
        if return_state:
            options["return_state"] = True
        if block is not None:
            options["block"] = block = checked(self.operands, self.name, operands, block)
        if not carried:
            result = self._direct(self.forward_of, operands, there, options)
            if result is not NotImplemented:
                return result
        options.pop("return_state", None)
        options.pop("block", None)
        if state_indices is not None or state_at is not None:
            return tensor_pools.forward(
                self, operands, state_indices=state_indices, state_at=state_at,
                initial_state=initial_state, return_state=return_state,
                **given(key_lengths=key_lengths, cu_seqlens=cu_seqlens, block=block), **options,
            )  # fmt: skip
        name = self.name
        if is_compiling() and block is None and not (there or return_state):
            o = self._traced.forward(operands, options)
            if o is not None:
                return o
        if key_lengths is not None:
            key_lengths = option_checks.integers(name, "key_lengths", key_lengths, operands[0])
        if cu_seqlens is not None:
            cu_seqlens = option_checks.integers(name, "cu_seqlens", cu_seqlens, operands[0])
        args, narrow = self.arguments(name, operands, options, key_lengths)
        lengths = {"key_lengths": key_lengths, "cu_seqlens": cu_seqlens, "block": block}
        args += [lengths[x] for x in self.length_names]
        if initial_state is None and not return_state:
            o = self.stateless(*args)
            return o if narrow is None else o.to(narrow)
        o, end = self._continued(args, initial_state, return_state)
        o = o if narrow is None else o.to(narrow)
        return (o, end) if return_state else o

    def _carries(self, return_state: Any) -> bool:
        """Whether the last state carries what rounding took."""
        return exact.wanted(self.name, return_state) and self.description.carries

    def _continued(
        self, args: Sequence[Any], initial_state: Any, return_state: Any
    ) -> tuple[Tensor, Any]:
        """The output, and the state after the last token."""
        name, carries = self.name, self._carries(return_state)
        dtype = work_dtype(args[self.values].dtype)
        state = self.states.read(name, "initial_state", initial_state, dtype)
        if carries or type(initial_state) is ExactState:
            if self.mapped and args[self.names.index("omega")] is not None:
                exact.refuse(name, return_state, initial_state, "for a map that rescales")
            o, *end = self.exact(*args, *state, self.states.lost(name, initial_state))
        else:
            o, *end = self.stateful(*args, *state)
            end = self._as_given("forward", end, "initial_state", initial_state)
        return o, self.states.result(end, args, exact=carries)

    def step(
        self, operands: Sequence[Any], state: Any, *, in_place: bool = False,
        state_indices: Any = None, **options: Any,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """The output of one token, and the state after it."""
        if type(in_place) is not bool:
            in_place = flag(self.description.step_name, "in_place", in_place)
        there = {"state": state}
        if state_indices is not None:
            there["state_indices"] = state_indices
        options["in_place"] = in_place
        result = self._direct(self.step_of, operands, there, options)
        if result is not NotImplemented:
            return result
        del options["in_place"]
        if in_place or state_indices is not None:
            exact.refuse_in_place(self.description.step_name, state)
        if state_indices is not None:
            return tensor_pools.step(
                self, operands, state, state_indices=state_indices, in_place=in_place, **options
            )
        if is_compiling():
            result = self._traced.step(operands, state, in_place, options)
            if result is not None:
                return result
        name = self.description.step_name
        args, narrow = self.arguments(name, operands, options)
        if state is None and self.description.one_array:
            raise TypeError(f"{name}: state is None; expected a tensor")
        if state is None:
            raise no_state(name, "state", state, self.states.expected)
        dtype = None if in_place else work_dtype(args[self.values].dtype)
        fields = self.states.read(name, "state", state, dtype)
        if in_place:
            conversions.check_in_place(name, (*args, *fields))
            o, after = self.step_in_place(*args, *fields), state
        else:
            o, *end = self.new_step(*args, *fields)
            end = self._as_given("step", end, "state", state)
            after = self.states.result(end, args)
        return o if narrow is None else o.to(narrow), after

    def _as_given(self, method: str, end: list[Tensor], argument: str, given: Any) -> list[Tensor]:
        """The fields of a new state, in 16 bits where the one before has them, if they may."""
        if given is None or not self.description.half_states[method]:
            return end
        return self.states.as_given(end, self.states.read(self.name, argument, given, None))

    def _direct(
        self, function: Any, operands: Sequence[Any], given: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """What NumPy's function gives; NotImplemented if it takes an operator of PyTorch."""
        if is_compiling() or not isinstance(like := operands[self.values], Tensor):
            return NotImplemented
        if like.requires_grad and torch.is_grad_enabled():
            return NotImplemented  # found sooner than by lending all
        phi = options.get("feature_map", "identity")
        if not (type(phi) is str and phi in MAPS):
            return NotImplemented
        dtype = like.dtype
        for name, x in given.items():  # where messages of arrays and tensors differ
            if name in ("state", "initial_state"):
                method = "step" if name == "state" else "forward"
                halves = self.description.half_states[method]
                fits = self.states.has_fields(x, work_dtype(dtype), halves=halves)
                if not (fits and self._alike(operands, dtype)):
                    return NotImplemented
            elif isinstance(x, Tensor) and x.is_floating_point():
                return NotImplemented
        return direct(function, operands, given, options, complex_too=self.complex_too)

    def _alike(self, operands: Sequence[Any], dtype: torch.dtype) -> bool:
        """Whether the operands that determine the dtype of a call have this one."""
        return all([getattr(operands[i], "dtype", dtype) is dtype for i in self._typed])

    def arguments(
        self,
        name: str,
        operands: Sequence[Any],
        options: Mapping[str, Any],
        key_lengths: Tensor | None = None,
    ) -> tuple[list[Any], torch.dtype | None]:
        """Operands and options as the operators of PyTorch take them.

        A map that kernels do not know is applied here.  Features of 16-bit tokens have 32 bits;
        then the dtype that the result is to have is returned as well.
        """
        args = conversions.promoted(name, self.operands, operands, complex_too=self.complex_too)
        if self.description.layout.elementwise:  # axes of their own that are missing
            layout, step = self.description.layout, name == self.description.step_name
            own = len(layout.output) - step
            if max(x.ndim for x in args) < own:
                layout.read(name, [shape_alone(x) for x in args], tokens=not step)  # an error
            args = [x[(None,) * (own - x.ndim)] if x.ndim < own else x for x in args]
        values = []
        for option, kind, check in self._checks:
            x = options.get(option, False)  # a flag that a step lacks
            values.append(x if type(x) is kind else check(name, option, x))
        if not self.mapped:
            return args + values, None
        phi = map_texts.resolve(name, options["feature_map"])
        if isinstance(phi, str):
            return [*args, phi, None, *values], None
        if isinstance(phi, map_texts.TensorMap) and phi.rescaled and options.get("normalize"):
            return [*args, phi.text, phi.directions(args[0]), *values], None
        for operand, x in zip(self.operands[:2], args[:2], strict=True):
            conversions.check(name, operand.name, x)
        token = name == self.description.step_name
        args, narrow = map_texts.applied(phi, args, key_lengths, token=token)
        return [*args, "identity", None, *values], narrow


#: Every operator, by name.
OPERATORS = {
    x.name: TensorOperator(x)
    for x in (
        *map(of_recurrence, RECURRENCES.values()), *OTHERS
    )
}  # fmt: skip
