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

from ..._call.recurrence import RECURRENCES
from ..._call.tables import MAPS
from ..._core.checks import shape_alone
from ..._states.state_arrays import no_state
from . import conversions, map_texts, option_checks, tensor_pools
from .conversions import work_dtype
from .descriptions import OTHERS, Description, of_recurrence
from .direct import compute, direct
from .library import Operator, name_of
from .tensor_states import States
from .traced import Traced


class TensorOperator:
    """Forward and step of an operator on tensors, differentiable."""

    def __init__(self, description: Description) -> None:
        d = self.description = description
        self.name, self.operands, self.fields = d.name, d.layout.operands, tuple(d.fields)
        operands = [f"Tensor{'?' * x.optional} {x.name}" for x in self.operands]
        sequences = ["Tensor? key_lengths"] * d.lengths + ["Tensor? cu_seqlens"] * bool(d.fields)
        whole = [*operands, *d.options, *sequences]
        self._operand_names = tuple(x.name for x in self.operands)
        self._option_names = tuple(name_of(x) for x in d.options)
        self._sequences = tuple(map(name_of, sequences))
        self.names = (*map(name_of, whole), *self.fields)
        self._step_names = *self._operand_names, *self._option_names, *self.fields
        #: Arguments begin with the operands; options, lengths and states end at these places.
        self._count = len(self.operands)
        self._options_end = self._count + len(d.options)
        self._end = len(whole)
        #: The place of the values: the operand whose width and dtype the output has.
        width = d.layout.output[-1:]
        self.values = next(i for i, x in enumerate(self.operands) if x.dims.endswith(width))
        self._mapped = "feature_map" in self._option_names
        first = 2 if self._mapped else 0  # a map is two options here: its text and omega
        self._numbers_from = self._count + first
        self._numbers = self._option_names[first:]
        self._checks = tuple((name_of(x), *option_checks.check_of(x)) for x in d.options[first:])
        self._states = States(d, self.names)
        self.complex_too = d.layout.complex_too
        made: Any = partial(Operator, complex_too=self.complex_too)
        #: NumPy's functions.
        self.forward_of, self.backward_of, self.step_of = d.forward, d.backward, d.step
        cast = [x.name for x in self.operands if d.cast and not x.state_dtype]

        def pair(suffix: str, fields: tuple[str, ...]) -> tuple[Operator, Operator]:
            """An operator over all tokens and its gradient's."""
            arguments = [*whole, *(f"Tensor? {x}" for x in fields)]
            grads = ["Tensor grad_out", *(f"Tensor? grad_{x}" for x in fields)]
            results = len(fields) + self._count
            forward = made(
                d.name + suffix, arguments, 1 + len(fields), self._run, self._fake,
                ranks=self._ranks, gradient=self._gradient, cast=cast,
            )  # fmt: skip
            return forward, made(
                f"{d.name}{suffix}_backward", grads + arguments, results,
                self._run_backward, self._fake_backward, ranks=self._ranks_backward,
                like=(*self._operand_names, *fields),
            )  # fmt: skip

        self.stateless, self._stateless_backward = pair("", ())
        self._traced = Traced(d, self.values, self.stateless)
        if not self.fields:
            return
        self.stateful, self._stateful_backward = pair("_state", self.fields)
        left_out = "" if d.one_array else "?"
        token, ranks = [*operands, *d.options], partial(self._ranks, step=True)
        read = [*token, *(f"Tensor{left_out} {x}" for x in self.fields)]
        fake = partial(self._fake, step=True)
        self.new_step = made(
            d.step_name, read, 1 + len(self.fields), self._run_new_step, fake,
            ranks=ranks, gradient=self._gradient_step, cast=cast,
        )  # fmt: skip
        unrecorded = made(
            f"{d.step_name}_unrecorded", read, 1 + len(self.fields), self._run_new_step, fake,
            ranks=ranks, recorded=False,
        )  # fmt: skip
        written = [f"Tensor({x}!){left_out} {y}" for x, y in zip("abc", self.fields, strict=False)]
        self.step_in_place = made(
            f"{d.step_name}_", [*token, *written], 1, self._run_step_in_place,
            lambda *args: self._fake(*args, step=True)[0], ranks=ranks,
        )  # fmt: skip
        self.step_in_place.traced = self._traced_step_in_place
        self._traced = Traced(
            d, self.values, self.stateless, self.new_step, unrecorded, self.step_in_place
        )

    # --- what users call ---------------------------------------------------------

    def forward(
        self,
        operands: Sequence[Any],
        *,
        key_lengths: Any = None,
        cu_seqlens: Any = None,
        initial_state: Any = None,
        return_state: bool = False,
        state_indices: Any = None,
        state_at: Any = None,
        **options: Any,
    ) -> Any:
        """The output, and the state after the last token where it is asked for."""
        given = _given(
            key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
            state_indices=state_indices, state_at=state_at,
        )  # fmt: skip
        if return_state:
            options["return_state"] = True
        result = self._direct(self.forward_of, operands, given, options)
        if result is not NotImplemented:
            return result
        options.pop("return_state", None)
        if state_indices is not None or state_at is not None:
            return tensor_pools.forward(
                self, operands, state_indices=state_indices, state_at=state_at,
                initial_state=initial_state, return_state=return_state,
                **_given(key_lengths=key_lengths, cu_seqlens=cu_seqlens), **options,
            )  # fmt: skip
        name = self.name
        if is_compiling() and not (given or return_state):
            o = self._traced.forward(operands, options)
            if o is not None:
                return o
        if key_lengths is not None:
            key_lengths = option_checks.integers(name, "key_lengths", key_lengths, operands[0])
        if cu_seqlens is not None:
            cu_seqlens = option_checks.integers(name, "cu_seqlens", cu_seqlens, operands[0])
        args, narrow = self.arguments(name, operands, options, key_lengths)
        if self.description.lengths:
            args.append(key_lengths)
        if self.fields:
            args.append(cu_seqlens)
        if initial_state is None and not return_state:
            o = self.stateless(*args)
            return o if narrow is None else o.to(narrow)
        dtype = work_dtype(args[self.values].dtype)
        state = self._states.read(name, "initial_state", initial_state, dtype)
        o, *end = self.stateful(*args, *state)
        o = o if narrow is None else o.to(narrow)
        return (o, self._states.result(end, args)) if return_state else o

    def step(
        self, operands: Sequence[Any], state: Any, *, in_place: bool = False,
        state_indices: Any = None, **options: Any,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """The output of one token, and the state after it."""
        given = {"state": state} | _given(state_indices=state_indices)
        result = self._direct(self.step_of, operands, given, options | {"in_place": in_place})
        if result is not NotImplemented:
            return result
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
            raise no_state(name, "state", state, "linattn.State(s, z)")
        dtype = None if in_place else work_dtype(args[self.values].dtype)
        fields = self._states.read(name, "state", state, dtype)
        if in_place:
            conversions.check_in_place(name, (*args, *fields))
            o, after = self.step_in_place(*args, *fields), state
        else:
            o, *end = self.new_step(*args, *fields)
            after = self._states.result(end, args)
        return o if narrow is None else o.to(narrow), after

    def _direct(
        self, function: Any, operands: Sequence[Any], given: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """What NumPy's function gives; NotImplemented if it takes an operator of PyTorch."""
        if is_compiling() or not isinstance(like := operands[self.values], Tensor):
            return NotImplemented
        if self.description.keeps_strides and not like.is_contiguous():
            return NotImplemented
        phi = options.get("feature_map", "identity")
        if not (type(phi) is str and phi in MAPS):
            return NotImplemented
        for name, x in given.items():  # where messages of arrays and tensors differ
            if name in ("state", "initial_state"):
                if not self._states.has_fields(x):
                    return NotImplemented
            elif isinstance(x, Tensor) and x.is_floating_point():
                return NotImplemented
        return direct(function, operands, given, options, complex_too=self.complex_too)

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
        if not self._mapped:
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

    # --- shapes ------------------------------------------------------------------

    def _own_axes(self, axes: Mapping[str, int | None], step: bool) -> list[int]:
        """How many axes of each operand do not lead, from the number of axes of each."""
        tellers = [axes.get(x.name) or 0 for x in self.operands[: self.description.layout.leading]]
        longest = max(tellers, default=0)
        return [x.own_axes(axes.get(x.name) or 0, longest, tokens=not step) for x in self.operands]

    def shape(self, named: Mapping[str, Any], step: bool) -> tuple[tuple[int, ...], Any]:
        """The leading axes of the operands, broadcast, and the sizes of the dimensions."""
        axes = {x: y.ndim for x in self._operand_names if (y := named.get(x)) is not None}
        leads: list[Any] = []
        sizes: dict[str, int] = {}
        for operand, rank in zip(self.operands, self._own_axes(axes, step), strict=True):
            if operand.name in axes:
                shape = named[operand.name].shape
                first = max(len(shape) - rank, 0)
                leads.append(shape[:first])
                letters = operand.letters(tokens=not step)
                for letter, size in zip(letters, shape[first:], strict=False):
                    if sizes.get(letter, 1) == 1:
                        sizes[letter] = size
        return torch.broadcast_shapes(*leads), sizes

    def _ranks(self, *axes: int | None, step: bool = False) -> list[int | None]:
        """How many axes of each argument do not lead; None for those that vmap cannot map."""
        named = dict(zip(self._step_names if step else self.names, axes, strict=False))
        own: dict[str, int | None] = dict(
            zip(self._operand_names, self._own_axes(named, step), strict=True)
        )
        packed = named.get("cu_seqlens") is not None
        own |= {"key_lengths": 0}
        own |= {x: len(dims) + packed for x, dims in self.description.fields.items()}
        return [own.get(name) for name in named]

    def _ranks_backward(self, *axes: int | None) -> list[int | None]:
        count = self._cotangents(axes)
        ranks = self._ranks(*axes[count:])
        return [len(self.description.layout.output), *ranks[self._end :], *ranks]

    def _cotangents(self, args: Sequence[Any]) -> int:
        """How many arguments of a gradient's operator precede those of the forward one."""
        return 1 if len(args) == 1 + self._end else 1 + len(self.fields)

    def _fake(self, *args: Any, step: bool = False) -> Any:
        d = self.description
        named = dict(zip(self._step_names if step else self.names, args, strict=False))
        lead, sizes = self.shape(named, step)
        like = args[self.values]
        core = d.layout.output.replace("n", "") if step else d.layout.output
        shape = (*lead, *(sizes[x] for x in core))
        if d.keeps_strides and like.shape == torch.Size(shape):
            # (batch, tokens, heads, m) transposed is transposed back without a copy
            o = torch.empty_like(like)
        else:
            o = like.new_empty(shape)
        if not self.fields or self.fields[0] not in named:
            return o
        sizes |= d.sizes(named, sizes)
        if named.get("cu_seqlens") is not None:
            lead = (*lead, named["cu_seqlens"].shape[0] - 1)
        dtype = work_dtype(like.dtype)
        return o, *(
            like.new_empty((*lead, *(sizes[x] for x in dims)), dtype=dtype)
            if there
            else conversions.nothing()
            for dims, there in zip(d.fields.values(), self._states.present(args), strict=True)
        )

    def _fake_backward(self, *args: Any) -> Any:
        args = args[self._cotangents(args) :]
        states = list(args[self._end :])
        if any(x is None for x in states):  # zeros, whose gradient has all leading axes
            full = self._fake(*args)[1:]
            states = [y if x is None else x for x, y in zip(states, full, strict=True)]
        return tuple(
            conversions.nothing() if x is None else x.new_empty(x.shape)
            for x in (*args[: self._count], *states)
        )

    # --- computing ---------------------------------------------------------------

    def _call(self, args: Sequence[Any], end: int) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The operands, lengths and options, up to a place, as NumPy's functions take them."""
        values = args[self._numbers_from : self._options_end]
        options: dict[str, Any] = dict(zip(self._numbers, values, strict=True))
        if self._mapped:
            options["feature_map"] = map_texts.restore(*args[self._count : self._numbers_from])
        lengths = zip(self._sequences, args[self._options_end : end], strict=False)
        return tuple(args[: self._count]), _given(**dict(lengths)), options

    def _run(self, *args: Any) -> Any:
        operands, given, options = self._call(args, self._end)
        like, fields = args[self.values], args[self._end :]
        if self.description.keeps_strides and not like.is_contiguous():
            given["out"] = _first(self._fake(*args))
        if not fields:
            return compute(self.forward_of, operands, given, options)
        given["initial_state"] = self._states.pack(fields)
        options["return_state"] = True
        o, state = compute(self.forward_of, operands, given, options)
        return o, *self._states.unpack(state)

    def _run_backward(self, *args: Any) -> Any:
        count = self._cotangents(args)
        grads, args = args[:count], args[count:]
        operands, given, options = self._call(args, self._end)
        fields = args[self._end :]
        given["grad_out"] = grads[0]
        if fields:
            given["initial_state"] = self._states.pack(fields)
            given["grad_state"] = self._grad_state(args, grads[1:])
        found = list(compute(self.backward_of, operands, given, options))
        states = self._states.unpack(found.pop()) if fields else ()
        present = iter(found)
        results = *[None if x is None else next(present) for x in operands], *states
        return tuple(
            conversions.nothing() if x is None else x if y is None else x.to(y.dtype)
            for x, y in zip(results, (*operands, *fields), strict=True)
        )

    def _grad_state(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        """The gradient with respect to the final state; None stands for zeros."""
        there = self._states.present(args)
        full = self._fake(*args)[1:]
        return self._states.pack([
            None if not exists else torch.zeros_like(like) if grad is None else grad
            for exists, grad, like in zip(there, grads, full, strict=True)
        ])  # fmt: skip

    def _run_step(self, *args: Any, in_place: bool = False) -> Any:
        operands, _, options = self._call(args, self._options_end)
        given = {"state": self._states.pack(args[self._options_end :])}
        return compute(self.step_of, operands, given, options | {"in_place": in_place})

    def _run_new_step(self, *args: Any) -> Any:
        o, state = self._run_step(*args)
        return o, *self._states.unpack(state)

    def _run_step_in_place(self, *args: Any) -> Tensor:
        o: Tensor = self._run_step(*args, in_place=True)[0]
        return o

    def _traced_step_in_place(self, *args: Any) -> Any:
        """The step in place, or a step and a copy of its state for ONNX, which writes nothing."""
        if not torch.onnx.is_in_onnx_export():
            return self.step_in_place.op(*args)
        o, *end = self.new_step(*args)
        for x, y in zip(args[self._options_end :], end, strict=True):
            if x is not None:
                x.copy_(y)
        return o

    # --- gradients ---------------------------------------------------------------

    def _gradient(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        grad_out, last = grads[0], [_or_none(x) for x in grads[1:]]
        if grad_out is None:
            grad_out = torch.zeros_like(_first(self._fake(*args)))
        backward = self._stateful_backward if args[self._end :] else self._stateless_backward
        names = *self._operand_names, *self.fields
        found = dict(zip(names, backward(grad_out, *last, *args), strict=False))
        pairs = zip(self.names, args, strict=False)
        return [None if x is None else found.get(name) for name, x in pairs]

    def _gradient_step(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        """The gradient of a sequence of one token."""
        named = dict(zip(self._step_names, args, strict=True))
        axes = {x: y.ndim for x in self._operand_names if (y := named[x]) is not None}
        place = {
            x.name: -1 - rank
            for x, rank in zip(self.operands, self._own_axes(axes, step=True), strict=True)
            if x.name in axes and "n" in x.dims
        }
        whole = {x: y.unsqueeze(place[x]) if x in place else y for x, y in named.items()}
        grad = grads[0]
        if grad is not None:
            grad = grad.unsqueeze(-len(self.description.layout.output))
        rest = self._gradient([whole.get(x) for x in self.names], (grad, *grads[1:]))
        found = dict(zip(self.names, rest, strict=True))
        return [
            found[x] if x not in place or found[x] is None else found[x].squeeze(place[x])
            for x in named
        ]


def _given(**named: Any) -> dict[str, Any]:
    """What is not None."""
    return {name: x for name, x in named.items() if x is not None}


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def _or_none(x: Tensor | None) -> Tensor | None:
    return None if x is None or x.shape == (0,) else x


#: Every operator, by name.
OPERATORS = {
    x.name: TensorOperator(x)
    for x in (
        *map(of_recurrence, RECURRENCES.values()), *OTHERS
    )
}  # fmt: skip
