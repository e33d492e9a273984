"""What everything else asks of a recurrence: pools, positions, blocks, ranks, bridges, the tests.

A recurrence takes a state from token to token.  `recurrence.Recurrence` has them: rows of
operators.def, with one kernel for each method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.dtypes import result_dtype
from .._states.state_arrays import State

if TYPE_CHECKING:
    from .._core.layout import Call, Layout, Operand
    from .._types import Shape

    Operands = tuple[Any, ...]


class Interface:
    """A recurrence."""

    name: str  #: of the public function
    names: Mapping[str, str]  #: of the functions "forward", "backward" and "step"
    layout: Layout  #: the letters of all axes
    operands: tuple[Operand, ...]  #: in the order of the functions
    #: What a block of tokens multiplies a state by (`_blocks`); None if there are no blocks.
    transition: str | None = "matrix"
    cross: bool = False  #: whether every query sees every key: there is no step
    mapped: bool = False  #: whether it takes feature maps
    fields: Mapping[str, str]  #: the letters of the axes of a state's arrays, by field
    first: float = -math.inf  #: log_scale of the state before all tokens
    decay: Callable[..., Any] | None = None  #: of those under a log scale (`kernels.Kernels`)
    normalizer: bool = False  #: whether a state has z only where ``normalize`` is True
    one_array: bool = False  #: whether a state is an array, not a `State`

    def forward(self, operands: Operands, **options: Any) -> Any:
        """The output, and the state after the last token with ``return_state``."""
        raise NotImplementedError

    def backward(self, operands: Operands, grad_out: Any, **options: Any) -> tuple[Any, ...]:
        """The gradient of each operand that is given; with a state, that of the first state."""
        raise NotImplementedError

    def step(self, operands: Operands, state: Any, **options: Any) -> tuple[Any, Any]:
        """The output of one token, and the state after it."""
        raise NotImplementedError

    def read(self, function: str, operands: Operands, *, tokens: bool = True) -> Call:
        """The operands, checked: of all tokens, or of one."""
        return self.layout.read(function, operands, tokens=tokens)

    def cores(self, sizes: Mapping[str, int], normalize: Any, *lead: int) -> State:
        """The shapes of a state's arrays, with these axes before them; None for z without the
        normaliser."""
        sizes, without = self.layout.sized(sizes), self.normalizer and not normalize
        letters = [None if without and x == "z" else self.fields.get(x) for x in State._fields]
        return State(*[
            None if own is None else (*lead, *[sizes[x] for x in own]) for own in letters
        ])  # fmt: skip

    def state(self, full: Callable[[Shape, float], Any], cores: State) -> State:
        """The state before all tokens, of arrays ``full(shape, value)``."""
        values = 0.0, 0.0, self.first
        return State(*(
            None if core is None else full(core, value)
            for core, value in zip(cores, values, strict=True)
        ))  # fmt: skip

    def public(self, state: State) -> Any:
        """A state as users have it."""
        return state.s if self.one_array else state

    def state_cores(self, function: str, call: Call, options: Mapping[str, Any]) -> State:
        """The shapes of a state's arrays, without leading axes; None for those it lacks."""
        raise NotImplementedError

    def checked(
        self, function: str, operands: Operands, options: Mapping[str, Any]
    ) -> tuple[Call, State]:
        """The operands and options of a call in blocks, checked, and the shapes of its states."""
        raise NotImplementedError

    def cotangent(self, function: str, grad_out: Any, call: Call) -> Any:
        """``grad_out``, checked; if an operand is complex it may be, and gets the call's dtype."""
        complex_too = any([x.dtype.kind == "c" for x in call.typed])
        grad_out = checks.cotangent(function, grad_out, call.shape, complex_too=complex_too)
        return grad_out.astype(result_dtype(*call.typed), copy=False) if complex_too else grad_out

    def forward_in_rows(self, call: Call, rows: Any, fields: list[Any], **options: Any) -> Any:
        """The output, with states that are updated in the rows of a pool of these arrays;
        NotImplemented if states have to be copied."""
        return NotImplemented
