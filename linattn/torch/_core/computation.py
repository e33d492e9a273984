"""The kernels of the operators of PyTorch: calls of NumPy's functions, and gradients by them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._call import exact
from . import conversions, map_texts
from .descriptions import Description
from .direct import compute, plain_step
from .signature import Signature

#: What C takes of a plain step beside its operands, and what stands for arguments that an
#: operator lacks.
_PLAIN = {
    "s": None, "z": None, "feature_map": "identity", "normalize": False, "scale": 1.0, "eps": 0.0,
}  # fmt: skip


class Computation(Signature):
    """An operator's functions, as PyTorch calls them."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        d = description
        #: NumPy's functions.
        self.forward_of, self.backward_of, self.step_of = d.forward, d.backward, d.step
        self._exact_of = partial(exact.apart, d.forward)
        #: Where what states have lost follows them.
        self._whole = self.end + len(self.fields)
        self._plain_step = _no_step if d.plain_step is None else self._step_of_c(d.plain_step)

    def _step_of_c(self, number: int) -> Any:
        """`plain_step` of the arguments of the step's operator."""
        places = {name: i for i, name in enumerate(self.step_names)}
        found = [places.get(name, value) for name, value in _PLAIN.items()]
        return plain_step((number, self.count, self.options_end + 2, *found))

    def _call(self, args: Sequence[Any], end: int) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The operands, lengths and options, up to a place, as NumPy's functions take them."""
        values = args[self.count : self.options_end]
        options: dict[str, Any] = dict(zip(self.option_names, values, strict=True))
        if self.mapped:
            options["feature_map"] = map_texts.restore(options["feature_map"], options.pop("omega"))
        lengths = zip(self.length_names, args[self.options_end : end], strict=False)
        there = {name: x for name, x in lengths if x is not None}
        return tuple(args[: self.count]), there, options

    def run(self, *args: Any) -> Any:
        operands, given, options = self._call(args, self.end)
        fields, lost = args[self.end : self._whole], args[self._whole :]
        if not fields:
            o = compute(self.forward_of, operands, given, options)
            return self._laid_out(self.fake, args, (o,))[0]
        given["initial_state"] = self.states.pack(fields)
        if lost:
            given["lost"] = lost[0]
            o, state, *lost = compute(self._exact_of, operands, given, options)
        else:
            o, state = compute(self.forward_of, operands, given, options | {"return_state": True})
        return self._laid_out(self.fake, args, (o, *self.states.unpack(state), *lost))

    def run_backward(self, *args: Any) -> Any:
        count = self.cotangents(args)
        grads, args = args[:count], args[count:]
        operands, given, options = self._call(args, self.end)
        fields = args[self.end :]
        given["grad_out"] = grads[0]
        if fields:
            given["initial_state"] = self.states.pack(fields)
            given["grad_state"] = self._grad_state(args, grads[1:])
        found = list(compute(self.backward_of, operands, given, options))
        states = self.states.unpack(found.pop()) if fields else ()
        present = iter(found)
        results = *[None if x is None else next(present) for x in operands], *states
        return self._laid_out(self.fake_backward, (*grads, *args), tuple(
            conversions.nothing() if x is None else x if y is None else x.to(y.dtype)
            for x, y in zip(results, (*operands, *fields), strict=True)
        ))  # fmt: skip

    @staticmethod
    def _laid_out(fake: Any, args: Sequence[Any], results: tuple[Tensor, ...]) -> Any:
        """The results, in memory as graphs expect them; only views have other strides."""
        if all(x.is_contiguous() for x in (*args, *results) if isinstance(x, Tensor)):
            return results
        expected = fake(*args)
        expected = expected if isinstance(expected, tuple) else (expected,)
        return tuple(
            x if _has_strides_of(x, y) else y.copy_(x)
            for x, y in zip(results, expected, strict=True)
        )

    def _grad_state(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        """The gradient with respect to the final state; None stands for zeros."""
        there = self.states.present(args)
        full = self.fake(*args)[1:]
        return self.states.pack([
            None if not exists else torch.zeros_like(like) if grad is None else grad
            for exists, grad, like in zip(there, grads, full, strict=True)
        ])  # fmt: skip

    def run_step(self, *args: Any, in_place: bool = False) -> Any:
        operands, _, options = self._call(args, self.options_end)
        given = {"state": self.states.pack(args[self.options_end :])}
        return compute(self.step_of, operands, given, options | {"in_place": in_place})

    def run_new_step(self, *args: Any) -> Any:
        found = self._plain_step(False, args)
        if found is NotImplemented:
            o, state = self.run_step(*args)
        else:
            o, *fields = found
            state = *fields, None
        return o, *self.states.unpack(state)

    def run_step_in_place(self, *args: Any) -> Tensor:
        found = self._plain_step(True, args)
        if found is NotImplemented:
            found = self.run_step(*args, in_place=True)
        o: Tensor = found[0]
        return o

    # --- gradients ---------------------------------------------------------------

    def backward(self, args: Sequence[Any]) -> Any:
        """The operator of the gradient, for arguments with or without a state."""
        raise NotImplementedError

    def gradient(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        whole = args[: self._whole]  # gradients do not use what a state carries
        grad_out, last = grads[0], [_or_none(x) for x in grads[1 : 1 + len(self.fields)]]
        if grad_out is None:
            grad_out = torch.zeros_like(first(self.fake(*whole)))
        names = *self.operand_names, *self.fields
        found = dict(zip(names, self.backward(whole)(grad_out, *last, *whole), strict=False))
        pairs = zip(self.names, args, strict=False)
        return [None if x is None else found.get(name) for name, x in pairs]

    def step_gradient(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        """The gradient of a sequence of one token."""
        named = dict(zip(self.step_names, args, strict=True))
        axes = {x: y.ndim for x in self.operand_names if (y := named[x]) is not None}
        place = {
            x.name: -1 - rank
            for x, rank in zip(self.operands, self.own_axes(axes, step=True), strict=True)
            if x.name in axes and "n" in x.dims
        }
        whole = {x: y.unsqueeze(place[x]) if x in place else y for x, y in named.items()}
        grad = grads[0]
        if grad is not None:
            grad = grad.unsqueeze(-len(self.description.layout.output))
        rest = self.gradient([whole.get(x) for x in self.names], (grad, *grads[1:]))
        found = dict(zip(self.names, rest, strict=True))
        return [
            found[x] if x not in place or found[x] is None else found[x].squeeze(place[x])
            for x in named
        ]


def _no_step(*args: Any) -> Any:
    """For operators whose steps need Python."""
    return NotImplemented


def _has_strides_of(x: Tensor, y: Tensor) -> bool:
    """Whether they are in memory alike; the strides of axes of one element do not matter."""
    return all(a == b or n == 1 for a, b, n in zip(x.stride(), y.stride(), x.shape, strict=True))


def first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def _or_none(x: Tensor | None) -> Tensor | None:
    return None if x is None or x.shape == (0,) else x
