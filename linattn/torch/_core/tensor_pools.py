"""``state_indices`` and ``state_at`` of tensors, as in `_call.pools` and `_call.positions`.

Rows of a pool are written in place, unless a gradient is recorded: the call then returns a new
pool, through which gradients pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._call import exact, pools
from ..._call.cut import Segments, positions
from ..._states.state_arrays import checked_lengths
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
    exact.refuse(operator.name, return_state, initial_state, "with state_indices or state_at")
    pool = None
    if state_indices is not None and state_at is not None:
        fields = [initial_state] if isinstance(initial_state, Tensor) else initial_state or ()
        _refuse_gradient(operator.name, (*operands, *fields))
    if state_indices is not None:
        packed = options.get("cu_seqlens")
        pool = _Tensors(
            operator, operator.name, operands, initial_state, state_indices, packed,
            written=return_state,
        )  # fmt: skip
        initial_state = pool.rows()
    options["initial_state"] = initial_state
    if state_at is None:
        result = operator.forward(operands, return_state=return_state, **options)
        if pool is None or not return_state:
            return result
        o, last = result
        return o, pool.written(last)
    block = options.pop("block", None)
    options_at = options | {"return_state": return_state}
    o, states, last = _at_positions(operator, operands, state_at, **options_at)
    if block is not None:  # on which states do not depend
        o = operator.forward(operands, block=block, **options)
    if pool is not None:
        pool.written(last)
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
    pool = _Tensors(operator, name, operands, state, state_indices, None, written=True)
    o, after = operator.step(operands, pool.rows(), **options)
    return o, pool.written(after)


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


class _Tensors(pools.Pool):
    """The rows of a pool of tensors."""

    def __init__(
        self, operator: TensorOperator, name: str, operands: Sequence[Any], state: Any,
        indices: Any, cu_seqlens: Any, *, written: bool,
    ) -> None:  # fmt: skip
        d, step = operator.description, name == operator.description.step_name
        argument = "state" if step else "initial_state"
        named = _named(operator, operands)
        lead, sizes = operator.shape(named, step)
        count = None
        if cu_seqlens is not None:
            count = option_checks.integers(name, "cu_seqlens", cu_seqlens, operands[0]).numel() - 1
        super().__init__(name, argument, state, tuple(lead), count, d.holder)
        self.state = state
        fields = operator.states.read(name, argument, state, None)
        sizes = sizes | d.sizes(named, sizes)
        for (field, dims), x in zip(d.fields.items(), fields, strict=True):
            if x is not None:
                full = argument if d.one_array else f"{argument}.{field}"
                self.add(full, x, tuple(sizes[letter] for letter in dims))
        indices = option_checks.state_indices(name, indices, operands[0])
        self.indices = ROWS(indices, self.count, self.size, name, argument, written)

    def rows(self) -> Any:
        """The states of the batch."""
        return self.pack([x.index_select(self.axis, self.indices) for x in self.fields.values()])

    def written(self, state: Any) -> Any:
        """The pool with the states of the batch in their rows."""
        new = self.unpack(state)
        for (name, x), y in zip(self.fields.items(), new, strict=True):
            if x.dtype is not y.dtype:
                raise TypeError(f"{self.function}: {name} has dtype {x.dtype}; expected {y.dtype}")
        pairs = [*zip(self.fields.values(), new, strict=True)]
        if not conversions.writable(*self.fields.values(), *new):
            return self.pack([x.index_copy(self.axis, self.indices, y) for x, y in pairs])
        check_memory(self.function, self.fields)
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
    cut, lead = _cut(operator, operands, state_at, reverse=bool(options.get("reverse")))
    if key_lengths is not None:
        key_lengths = option_checks.integers(name, "key_lengths", key_lengths, operands[0])
        found = conversions.values(key_lengths)
        if found is not None:
            checked_lengths(name, found, cut.n, lead)
    outputs, states, state = [], {}, initial_state
    tokens = -len(operator.description.layout.output)  # their axis
    step_options = {x: y for x, y in options.items() if x != "reverse"}
    for i, (begin, end) in enumerate(cut.segments):
        lengths = None if key_lengths is None else (key_lengths - begin).clamp(0, end - begin)
        # A length of the last part may be a symbol.
        if i < len(cut.ends) and end - begin == 1 and state is not None and lengths is None:
            o, state = operator.step(cut.token(begin), state, **step_options)
            o = o.unsqueeze(tokens)
        else:
            o, state = operator.forward(
                cut.part(begin, end), initial_state=state, return_state=True, key_lengths=lengths,
                **options,
            )  # fmt: skip
        outputs.append(o)
        if i < len(cut.ends):
            states[end] = state
    o = torch.cat(outputs[::-1] if cut.reverse else outputs, tokens)
    return o, _stacked(operator, [states[end] for end in cut.positions], state), state


def positions_of(name: str, state_at: Any, n: int) -> list[int]:
    """``state_at``, checked."""
    if torch.compiler.is_compiling():  # which cannot trace the checks
        if isinstance(state_at, Tensor):
            private.break_graph("state_at is a tensor; a list of int breaks no graph")
        return [int(x) for x in state_at]
    return positions(
        name, state_at.numpy(force=True) if isinstance(state_at, Tensor) else state_at, n
    )


def _cut(
    operator: TensorOperator, operands: Sequence[Any], state_at: Any, *, reverse: bool
) -> tuple[Segments, Any]:
    """The operands, cut along their tokens, and their leading axes."""
    named = _named(operator, operands)
    for row, x in zip(operator.operands, operands, strict=True):
        if not (isinstance(x, (Tensor, int, float, complex)) or (x is None and row.optional)):
            conversions.check(operator.name, row.name, x, complex_too=operator.complex_too)
    lead, sizes = operator.shape(named, step=False)
    own = operator.own_axes({name: x.ndim for name, x in named.items()}, step=False)
    axes = [
        x.ndim - rank if row.has_tokens and isinstance(x, Tensor) and x.ndim >= rank else None
        for row, x, rank in zip(operator.operands, operands, own, strict=True)
    ]
    n = sizes["n"]
    return Segments(
        operands, axes, n, positions_of(operator.name, state_at, n), reverse=reverse
    ), lead


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
    return operator.description.holder(*(
        None if x is None else stack([y[i] for y in states], x, rank)
        for i, (x, rank) in enumerate(zip(last[: len(ranks)], ranks, strict=True))
    ))  # fmt: skip
