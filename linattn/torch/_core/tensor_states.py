"""States as users, the operators of PyTorch and NumPy's functions have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import ExactState, State, exact_state
from . import conversions
from .descriptions import Description


class States:
    """The states of an operator: an array, or a named tuple of some fields.

    The operators of PyTorch take every field, None for those that a state lacks, and return an
    empty tensor for these.
    """

    def __init__(self, description: Description, names: Sequence[str]) -> None:
        self.fields, self.one_array = tuple(description.fields), description.one_array
        self._holder = description.holder
        self._complex_too = description.layout.complex_too
        needs = {"z": "normalize", "log_scale": "omega"}
        #: The place of the argument that a field needs; None for none.
        self._needed = [
            names.index(needs[x]) if needs.get(x) in names else None for x in self.fields
        ]

    def _may_have(self, arrays: int) -> bool:
        """Whether a state may have so many: a `State` need not have its last one."""
        return 2 <= arrays <= 3 if self._holder is State else arrays == len(self.fields)

    @property
    def expected(self) -> str:
        """What a state is to be, in words."""
        fields = State._fields[:2] if self._holder is State else self._holder._fields
        return f"linattn.{self._holder.__name__}({', '.join(fields)})"

    def has_fields(self, state: Any, dtype: torch.dtype, *, halves: bool = False) -> bool:
        """Whether a state has the type that it is to have, and its first array that dtype, or,
        with ``halves``, 16 bits where that is float32."""
        if not self.one_array:
            if not isinstance(state, tuple) or not self._may_have(len(state)):
                return False
            state = state[0]
        if not isinstance(state, Tensor):
            return False
        return state.dtype is dtype or (halves and _is_half(state, dtype))

    def read(
        self, name: str, argument: str, state: Any, dtype: torch.dtype | None
    ) -> tuple[Tensor | None, ...]:
        """The arrays of a state as the operators of PyTorch take them, in a dtype if given."""
        if state is None:
            return (None,) * len(self.fields)
        if self.one_array:
            if not isinstance(state, Tensor) or state.dtype not in conversions.REAL:
                conversions.check(name, argument, state)
            return (state if dtype is None else state.to(dtype),)
        if not isinstance(state, tuple) or not self._may_have(len(state)):
            what = f"tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise TypeError(f"{name}: {argument} is a {what}; expected a {self.expected}")
        for field, x in zip(self._holder._fields, state, strict=False):
            if x is None and field in ("z", "log_scale"):
                continue
            if not isinstance(x, Tensor) or x.dtype not in conversions.REAL:
                conversions.check(name, f"{argument}.{field}", x, complex_too=self._complex_too)
            if field not in self.fields:
                raise ValueError(f"{name}: {argument}.{field} is given; expected None")
        fields = [*state, None][: len(self.fields)]
        if dtype is not None:
            fields = [x if x is None or x.dtype is dtype else x.to(dtype) for x in fields]
        return tuple(fields)

    def lost(self, name: str, state: Any) -> Tensor | None:
        """What the initial state has lost; None if nothing."""
        if type(state) is not ExactState:
            return None
        lost: Tensor = state.lost
        conversions.check(name, "initial_state.lost", lost)
        return lost

    def as_given(self, fields: Sequence[Tensor], given: Sequence[Tensor | None]) -> list[Tensor]:
        """Fields of a new state, those that were given in 16 bits rounded to these."""
        return [
            x if y is None or not _is_half(y, x.dtype) else x.to(y.dtype)
            for x, y in zip(fields, given, strict=True)
        ]

    def result(self, fields: Sequence[Tensor], args: Sequence[Any], *, exact: bool = False) -> Any:
        """The state that an operator returned, whose absent arrays are empty tensors there.

        What the state has lost may follow them.
        """
        if self.one_array:
            return fields[0]
        if len(fields) == 1:
            return self._holder(fields[0])
        there = zip(fields[: len(self.fields)], self.present(args), strict=True)
        state = self._holder(*[x if exists else None for x, exists in there])
        return exact_state(state, fields[-1]) if exact else state

    def present(self, args: Sequence[Any]) -> list[bool]:
        """Which arrays a state has, with these options."""
        return [i is None or (args[i] is not None and args[i] is not False) for i in self._needed]

    def pack(self, fields: Sequence[Tensor | None]) -> Any:
        """A state of these fields."""
        if fields[0] is None:
            return None
        return fields[0] if self.one_array else self._holder(*fields)

    def unpack(self, state: Any) -> tuple[Tensor, ...]:
        """Its fields, as operators return them."""
        fields = (state,) if self.one_array else state[: len(self.fields)]
        return tuple([conversions.nothing() if x is None else x for x in fields])


def _is_half(x: Tensor, computed: torch.dtype) -> bool:
    """Whether a state has 16 bits and is computed with in float32."""
    return computed is torch.float32 and x.dtype in (torch.float16, torch.bfloat16)
