"""``state_indices`` and ``state_at`` of tensors, as in `_call.pools` and `_call.positions`.

Rows of a pool are written in place, unless a gradient is recorded: the call then returns a new
pool, through which gradients pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._call import pools
from ..._call.cut import positions
from ..._states.state_arrays import State, checked_lengths
from . import conversions, option_checks, private
from .direct import array, check_memory
from .library import Operator

if TYPE_CHECKING:
    from .operator import TensorOperator


def forward(
    operator: TensorOperator, operands: Sequence[Any], *, state_indices: Any, state_at: Any,
    initial_state: Any, return_state: bool, **options: Any,
) -> Any:  # fmt: skip
    """The output, and the states that are asked for."""
    pool = None
    if state_indices is not None and state_at is not None:
        fields = [initial_state] if isinstance(initial_state, Tensor) else initial_state or ()
        _refuse_gradient(operator.name, (*operands, *fields))
    if state_indices is not None:
        packed = options.get("cu_seqlens")
        pool = _Pool(
            operator, operator.name, operands, initial_state, state_indices, packed,
            written=return_state,
        )  # fmt: skip
        initial_state = pool.rows()
    options |= {"initial_state": initial_state, "return_state": return_state}
    if state_at is None:
        result = operator.forward(operands, **options)
        if pool is None or not return_state:
            return result
        o, last = result
        return o, pool.written(last, operands)
    o, states, last = _at_positions(operator, operands, state_at, **options)
    if pool is not None:
        pool.written(last, operands)
    return o, states


def _refuse_gradient(name: str, args: Sequence[Any]) -> None:
    """Refuses a call that would return neither its pool nor a new one."""
    if not conversions.writable(*(x for x in args if isinstance(x, Tensor))):
        raise RuntimeError(
            f"{name}: state_indices and state_at are given and an operand requires grad; expected "
            "one of the two, as the states at the positions are returned and not a new pool, or "
            "torch.no_grad()"
        )


def step(
    operator: TensorOperator, operands: Sequence[Any], state: Any, *, state_indices: Any,
    in_place: bool, **options: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """The output of one token, and the pool."""
    name = operator.description.step_name
    if in_place:
        fields = [state] if isinstance(state, Tensor) else list(state)
        conversions.check_in_place(name, (*operands, *fields))
    pool = _Pool(operator, name, operands, state, state_indices, None, written=True)
    o, after = operator.step(operands, pool.rows(), **options)
    return o, pool.written(after, operands)


def _checked(
    indices: Tensor, count: int, rows: int, function: str, pool: str, different: bool
) -> Tensor:
    """``indices``, after the check of their values."""
    pools.checked_indices(function, pool, array(indices), count, rows, different=different)
    return indices.clone()


#: An operator of PyTorch, as graphs leave out all other checks of values.
ROWS = Operator(
    "pool_rows", ["Tensor state_indices", "SymInt count", "SymInt rows", "str function",
                  "str pool", "bool different"], 1,
    _checked, lambda indices, *_: torch.empty_like(indices), ranks=lambda *axes: (None,) * 6,
)  # fmt: skip


class _Pool:
    """The rows of a pool that a call uses."""

    def __init__(
        self, operator: TensorOperator, name: str, operands: Sequence[Any], state: Any,
        indices: Any, cu_seqlens: Any, *, written: bool,
    ) -> None:  # fmt: skip
        d = operator.description
        self.name, self.state, step = name, state, name == d.step_name
        argument = "state" if step else "initial_state"
        if state is None:
            raise ValueError(
                f"{name}: {argument} is None; expected a pool of states, as state_indices is given"
            )
        lead, _ = operator.shape(_named(operator, operands), step)
        if cu_seqlens is None and not lead:
            raise ValueError(
                f"{name}: the operands have no leading axes; expected one at least, as "
                "state_indices is given"
            )
        fields = operator._states.read(name, argument, state, None)
        around: tuple[Sequence[int], Sequence[int]]
        if cu_seqlens is None:
            around, count = ((), lead[1:]), lead[0]
        else:
            bounds = option_checks.integers(name, "cu_seqlens", cu_seqlens, operands[0])
            around, count = (lead, ()), bounds.numel() - 1
        self.axis = len(around[0])
        self.fields = {}
        for (field, dims), x in zip(d.fields.items(), fields[: len(d.fields)], strict=True):
            if x is not None:
                full = argument if d.one_array else f"{argument}.{field}"
                self._check(full, x, around, dims)
                self.fields[full] = x
        rows = next(iter(self.fields.values())).shape[self.axis]
        indices = option_checks.state_indices(name, indices, operands[0])
        self.indices = ROWS(indices, count, rows, name, argument, written)

    def _check(
        self, name: str, x: Tensor, around: tuple[Sequence[int], Sequence[int]], dims: Sequence[str]
    ) -> None:
        """Check the leading axes of a pool's array, ``around`` that of the rows, and the rows."""
        before, after = map(tuple, around)
        begin, end = self.axis + 1, x.ndim - len(dims)
        if end < begin or x.shape[: self.axis] != before or x.shape[begin:end] != after:
            expected = ", ".join(map(str, (*before, "rows", *after, *dims)))
            raise ValueError(
                f"{self.name}: {name} has shape {tuple(x.shape)}; expected ({expected}), a pool, "
                "as state_indices is given"
            )
        for other, y in self.fields.items():
            if x.shape[self.axis] != y.shape[self.axis]:
                raise ValueError(
                    f"{self.name}: {name} has {x.shape[self.axis]} rows; expected "
                    f"{y.shape[self.axis]}, as {other} has"
                )

    def rows(self) -> Any:
        """The states of the batch."""
        rows = [x.index_select(self.axis, self.indices) for x in self.fields.values()]
        return self._packed(rows)

    def _packed(self, arrays: Sequence[Tensor]) -> Any:
        """A state of the kind that was given."""
        if isinstance(self.state, Tensor):
            return arrays[0]
        named = {x.rpartition(".")[2]: y for x, y in zip(self.fields, arrays, strict=True)}
        return State(**named)

    def written(self, state: Any, operands: Sequence[Any]) -> Any:
        """The pool with the states of the batch in their rows."""
        new = [state] if isinstance(state, Tensor) else [x for x in state if x is not None]
        for (name, x), y in zip(self.fields.items(), new, strict=True):
            if x.dtype is not y.dtype:
                raise TypeError(f"{self.name}: {name} has dtype {x.dtype}; expected {y.dtype}")
        pairs = [*zip(self.fields.values(), new, strict=True)]
        if any(y.requires_grad or x.requires_grad for x, y in pairs) and torch.is_grad_enabled():
            return self._packed([x.index_copy(self.axis, self.indices, y) for x, y in pairs])
        check_memory(self.name, self.fields)
        for x, y in pairs:
            x.index_copy_(self.axis, self.indices, y)
        return self.state


def _named(operator: TensorOperator, operands: Sequence[Any]) -> dict[str, Any]:
    """The operands that are tensors, by name."""
    pairs = zip(operator.operands, operands, strict=True)
    return {row.name: x for row, x in pairs if isinstance(x, Tensor)}


def _at_positions(
    operator: TensorOperator, operands: Sequence[Any], state_at: Any, *, initial_state: Any,
    return_state: bool, cu_seqlens: Any = None, key_lengths: Any = None, **options: Any,
) -> tuple[Tensor, Any, Any]:  # fmt: skip
    """The output, the states at the positions, and the state after the last token."""
    name = operator.name
    if not return_state:
        raise ValueError(
            f"{name}: state_at is given and return_state is {return_state!r}; expected True, as "
            "the states are returned"
        )
    if cu_seqlens is not None:
        raise ValueError(f"{name}: cu_seqlens is given; expected None, as state_at is given")
    cut = _Cut(operator, operands, bool(options.get("reverse")))
    if key_lengths is not None:
        key_lengths = option_checks.integers(name, "key_lengths", key_lengths, operands[0])
        found = conversions.values(key_lengths)
        if found is not None:
            checked_lengths(name, found, cut.n, cut.lead)
    wanted = _positions(name, state_at, cut.n)
    cuts = sorted({*wanted})
    edges = [0, *cuts]
    if edges[-1] < cut.n or not cuts:
        edges.append(cut.n)
    outputs, states, state = [], [], initial_state
    step_options = {x: y for x, y in options.items() if x != "reverse"}
    for i, (begin, end) in enumerate(pairwise(edges)):
        lengths = None if key_lengths is None else (key_lengths - begin).clamp(0, end - begin)
        # A length of the last part may be a symbol.
        if i < len(cuts) and end - begin == 1 and state is not None and lengths is None:
            o, state = operator.step(cut.token(begin), state, **step_options)
            o = o.unsqueeze(-2)
        else:
            o, state = operator.forward(
                cut.part(begin, end), initial_state=state, return_state=True, key_lengths=lengths,
                **options,
            )  # fmt: skip
        outputs.append(o)
        states.append(state)
    o = torch.cat(outputs[::-1] if cut.reverse else outputs, -2)
    return o, _stacked(operator, [states[cuts.index(i)] for i in wanted], state), state


def _positions(name: str, state_at: Any, n: int) -> list[int]:
    if torch.compiler.is_compiling():  # which cannot trace the checks
        if isinstance(state_at, Tensor):
            private.break_graph("state_at is a tensor; a list of int breaks no graph")
        return [int(x) for x in state_at]
    return positions(
        name, state_at.numpy(force=True) if isinstance(state_at, Tensor) else state_at, n
    )


class _Cut:
    """The operands of a call, to be cut along their tokens."""

    def __init__(self, operator: TensorOperator, operands: Sequence[Any], reverse: bool) -> None:
        self.operands, self.reverse = operands, reverse
        named = _named(operator, operands)
        for row, x in zip(operator.operands, operands, strict=True):
            if not (isinstance(x, (Tensor, int, float, complex)) or (x is None and row.optional)):
                conversions.check(operator.name, row.name, x, complex_too=operator.complex_too)
        self.lead, sizes = operator.shape(named, step=False)
        self.n = sizes["n"]
        own = operator._own_axes({name: x.ndim for name, x in named.items()}, step=False)
        self.axes = [
            x.ndim - rank if row.has_tokens and isinstance(x, Tensor) and x.ndim >= rank else None
            for row, x, rank in zip(operator.operands, operands, own, strict=True)
        ]

    def part(self, begin: int, end: int) -> tuple[Any, ...]:
        """The operands of some tokens, counted from the last one in reverse."""
        if self.reverse:
            begin, end = self.n - end, self.n - begin
        return tuple(
            x if axis is None or x.shape[axis] != self.n else x.narrow(axis, begin, end - begin)
            for x, axis in zip(self.operands, self.axes, strict=True)
        )

    def token(self, begin: int) -> tuple[Any, ...]:
        """The operands of one token, as steps take them."""
        i = self.n - 1 - begin if self.reverse else begin
        return tuple(
            x if axis is None else x.select(axis, i if x.shape[axis] == self.n else 0)
            for x, axis in zip(self.operands, self.axes, strict=True)
        )


def _stacked(operator: TensorOperator, states: list[Any], last: Any) -> Any:
    """The states, with an axis for their positions before the axes of their own."""
    fields: Mapping[str, str] = operator.description.fields

    def stack(arrays: list[Tensor], like: Tensor, own: int) -> Tensor:
        axis = like.ndim - own
        shape = *like.shape[:axis], 0, *like.shape[axis:]
        return torch.stack(arrays, axis) if arrays else like.new_empty(shape)

    ranks = [len(x) for x in fields.values()]
    if isinstance(last, Tensor):
        return stack(states, last, ranks[0])
    return State(*(
        None if x is None else stack([y[i] for y in states], x, rank)
        for i, (x, rank) in enumerate(zip(last[: len(ranks)], ranks, strict=True))
    ))  # fmt: skip
