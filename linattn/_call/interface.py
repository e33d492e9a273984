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
from .._states import state_arrays
from .._states.state_arrays import State

if TYPE_CHECKING:
    from .._core.layout import Call, Layout, Operand
    from .._types import Cores, Shape

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
    present: Mapping[bool, Mapping[str, str]]  #: of those that a state has, by ``normalize``
    first: float = -math.inf  #: log_scale of the state before all tokens
    decay: Callable[..., Any] | None = None  #: of those under a log scale (`kernels.Kernels`)
    stacked: bool = False  #: whether a state's z has the axes of s, and a block mixes the two
    normalizer: bool = False  #: whether a state has z only where ``normalize`` is True
    one_array: bool = False  #: whether a state is an array
    half_states: Mapping[str, bool]  #: whether states may have 16 bits, by method
    compensated: bool = False  #: whether a call may carry what its sums lose (`exact`)
    holder: type[Any] = State  #: else the named tuple that it is

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

    def cores(
        self, sizes: Mapping[str, int], normalize: Any, *lead: int,
        features: Callable[[int], int] | None = None, rescaled: bool = False,
    ) -> dict[str, Shape]:  # fmt: skip
        """The shapes of a state's arrays by field, with these axes before them.

        A map makes ``features(d)`` numbers of d, and may rescale as it goes.
        """
        sizes = self.layout.sized(sizes)
        if features is not None and self.mapped:
            sizes = {**sizes, "d": features(sizes["d"])}
        present = self.present[bool(normalize)].items()
        cores = {field: (*lead, *[sizes[x] for x in own]) for field, own in present}
        return cores | {"log_scale": cores["z"]} if rescaled and "z" in cores else cores

    def start(self, full: Callable[[Shape, float], Any], cores: Cores) -> dict[str, Any]:
        """The arrays ``full(shape, value)`` of the state before all tokens, by field."""
        return {x: full(core, self.first if x == "log_scale" else 0.0) for x, core in cores.items()}

    def public(self, fields: Mapping[str, Any]) -> Any:
        """A state of these arrays as users have it."""
        return fields["s"] if self.one_array else self.holder(**fields)

    def fields_of(self, state: Any) -> Mapping[str, Any]:
        """The arrays of such a state; None for those it lacks."""
        return {"s": state} if self.one_array else state._asdict()

    def state_cores(
        self, function: str, call: Call, options: Mapping[str, Any]
    ) -> dict[str, Shape]:
        """The shapes of a state's arrays, by field."""
        raise NotImplementedError

    def checked(
        self, function: str, operands: Operands, options: Mapping[str, Any]
    ) -> tuple[Call, dict[str, Shape]]:
        """The operands and options of a call in blocks, checked, and the shapes of its states."""
        raise NotImplementedError

    def checked_state(
        self, function: str, name: str, state: Any, cores: Mapping[str, Shape], lead: Shape,
        dtype: Any, halves: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """The arrays of a state, checked, by the names of messages (`state_arrays.checked`)."""
        return state_arrays.checked(
            function, name, state, cores, lead, dtype, one_array=self.one_array,
            holder=self.holder, halves=halves,
        )  # fmt: skip

    def cotangent(self, function: str, grad_out: Any, call: Call) -> Any:
        """``grad_out``, checked; if an operand is complex it may be, and gets the call's dtype."""
        complex_too = any([x.dtype.kind == "c" for x in call.typed])
        core = len(self.layout.output)
        grad_out = checks.cotangent(
            function, grad_out, call.shape, core=core, complex_too=complex_too
        )
        return grad_out.astype(result_dtype(*call.typed), copy=False) if complex_too else grad_out

    def forward_in_rows(self, call: Call, rows: Any, fields: list[Any], **options: Any) -> Any:
        """The output, with states that are updated in the rows of a pool of these arrays;
        NotImplemented if states have to be copied."""
        raise NotImplementedError
