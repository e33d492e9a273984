"""A call on a sequence in blocks, whoever has them: tasks of a graph, or ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from .._core.dtypes import result_dtype, state_dtype
from .._states import state_arrays
from .._states.state_arrays import State
from . import block_scan

if TYPE_CHECKING:
    from .._call.recurrence import Recurrence

ALL, QUERIES, KEYS = slice(None), slice(0, 1), slice(1, 3)  #: operands of a block

#: What stands for one result a block: methods of the call return it and take it.
Value: TypeAlias = Any


class BlockedCall:
    """A call of a recurrence; its methods say what to compute, and subclasses where.

    Subclasses run functions of blocks, scan their effects, and have ``grad_out`` as a value.
    """

    grad_out: Value

    def __init__(self, r: Recurrence, method: str, options: Mapping[str, Any]) -> None:
        self.r, self.name, self.backward = r, r.names[method], method == "backward"
        self.options = {"feature_map": "identity", **options}  # not every recurrence has a map
        self.reverse = bool(options.get("reverse"))

    def each(self, function: Callable[..., Any], *values: Value, of: slice = ALL) -> Value:
        """``function(settings, operands, key_lengths, *values)`` of each block.

        Nothing is computed before it is needed.  The operands are those of the slice.
        """
        raise NotImplementedError

    def part(self, value: Value, i: int) -> Value:
        """Item i of each."""
        raise NotImplementedError

    def scan(self, elements: Value, start: Value, *, backwards: bool = False) -> Value:
        """The states before the blocks, from their effects and the state before all of them.

        Backwards, those after the blocks.
        """
        raise NotImplementedError

    def total(self, values: Value, of: slice) -> Value:
        """The sum of states over the blocks of these operands; each block has it."""
        raise NotImplementedError

    def check(
        self, operands: tuple[Any, ...], grad_out: Any, states: Mapping[str, State | None],
        cu_seqlens: Any = None,
    ) -> None:  # fmt: skip
        """Checks a call and finds its shapes and dtypes; arrays may be stand-ins."""
        call, cores = self.r.checked(self.name, operands, self.options)
        typed = call.typed
        if self.backward:
            grad_out = self.r.cotangent(self.name, grad_out, call)
            typed = *typed, grad_out
        packed: tuple[int, ...] = ()
        if cu_seqlens is not None:
            n = call.fit.sizes["n"]
            cu_seqlens = state_arrays.checked_bounds(self.name, cu_seqlens, n)
            packed = (len(cu_seqlens) - 1,)
        self.read, self.typed, self.batch, self.cu_seqlens = call, typed, call.batch, cu_seqlens
        self.dtype, self.state_dtype = result_dtype(*typed), state_dtype(*typed)
        #: The shapes of a state's arrays without leading axes, with that of sequences.
        self.cores = {field: (*packed, *core) for field, core in cores.items()}
        for name, state in states.items():
            if state is not None:
                state_arrays.checked(
                    self.name, name, state, self.cores, self.batch, self.state_dtype
                )

    # --- one token after another ---------------------------------------------------

    def outputs(self, start: Value) -> tuple[Value, Value]:
        """The outputs, and the outputs with the state after the block."""
        states = self.scan(self.each(block_scan.element), start)
        with_end = partial(block_scan.forward, with_end=True)
        return self.each(block_scan.forward, states), self.each(with_end, states)

    def gradients(self, start: Value, last: Value) -> Value:
        """The gradients of all operands, None for those left out, and of the state before."""
        elements = self.each(block_scan.element)
        states = self.scan(elements, start)
        own = None
        if block_scan.gradient_is_sum(self.r, **self.options):
            turned = self.each(block_scan.gradient_sum, self.grad_out)
        else:
            own = self.each(block_scan.backward, self.grad_out, states, None)
            turned = self.each(block_scan.turned, elements, own, states)
        grads = self.scan(turned, last, backwards=True)
        if grads is None and own is not None:
            return own
        return self.each(block_scan.backward, self.grad_out, states, grads)

    # --- queries that see all keys -------------------------------------------------

    def outputs_over_all(self) -> Value:
        """The outputs of `linattn.noncausal`."""
        return self.each(block_scan.read, self._sums(), of=QUERIES)

    def gradients_over_all(self) -> list[Value]:
        """The gradients of its queries, keys and values."""
        result = self.each(block_scan.read_backward, self.grad_out, self._sums(), of=QUERIES)
        grad = self.total(self.part(result, 1), QUERIES)
        grads = self.each(block_scan.sums_backward, grad, of=KEYS)
        return [self.part(result, 0), self.part(grads, 0), self.part(grads, 1)]

    def _sums(self) -> Value:
        return self.total(self.each(block_scan.sums, of=KEYS), KEYS)
