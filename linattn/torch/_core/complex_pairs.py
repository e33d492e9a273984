"""`linear_scan` of complex tensors: its operator takes each channel as two real columns.

`torch.view_as_real` and its inverse give gradients in PyTorch's convention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._call.complex_scan import COMPLEX, SCAN
from ..._states.state_arrays import State, no_state
from . import conversions
from .descriptions import of_recurrence
from .operator import OPERATORS, TensorOperator

_PAIRS = TensorOperator(
    of_recurrence(SCAN)._replace(name=COMPLEX.key, step_name=f"{COMPLEX.key}_step", cast=False)
)
_DTYPES = torch.complex64, torch.complex128


def forward(
    operands: Sequence[Any], *, initial_state: Any = None, return_state: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """`linear_scan` of complex tensors."""
    function = SCAN.name
    a, x = read(function, operands)
    if initial_state is not None:
        initial_state = _state(function, "initial_state", initial_state, x)
    result = _PAIRS.forward(
        (pairs(a), pairs(x)), initial_state=initial_state, return_state=return_state, **options
    )
    if not return_state:
        return numbers(result)
    h, state = result
    return numbers(h), State(numbers(state.s))


def step(
    operands: Sequence[Any], state: Any, *, in_place: bool = False, **options: Any
) -> tuple[Tensor, Any]:
    """`linear_scan_step` of complex tensors."""
    function = SCAN.names["step"]
    a, x = read(function, operands)
    before = _state(function, "state", state, x)
    if in_place:
        conversions.check_in_place(function, (a, x, state[0]))
    h, after = _PAIRS.step((pairs(a), pairs(x)), before, **options)
    if not in_place:
        return numbers(h), State(numbers(after.s))
    if state[0].shape != numbers(after.s).shape or state[0].dtype is not x.dtype:
        raise ValueError(
            f"{function}: state.s is {state[0].dtype} of shape {tuple(state[0].shape)}; expected "
            f"{x.dtype} of shape {tuple(numbers(after.s).shape)} to be updated in place"
        )
    state[0].copy_(numbers(after.s))
    return numbers(h), state


def read(function: str, operands: Sequence[Any]) -> list[Tensor]:
    """The operands, checked, in one complex dtype, with all channels."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    for name, x in zip("ax", operands, strict=True):
        if not tensors or not isinstance(x, (int, float, complex)):
            conversions.check(function, name, x, complex_too=True)
        if isinstance(x, Tensor) and x.dtype is torch.complex32:
            raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected complex64 or more")
    double = any(x.dtype in (torch.float64, torch.complex128) for x in tensors)
    dtype, device = torch.complex128 if double else torch.complex64, tensors[0].device
    a, x = (
        y.to(dtype) if isinstance(y, Tensor) else torch.tensor(y, dtype=dtype, device=device)
        for y in operands
    )
    channels = _shape(function, a.shape, x.shape)[-1]
    return [y.expand(*y.shape[:-1], channels) for y in (a, x)]


def _shape(function: str, a: tuple[int, ...], x: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the operands broadcast to, or an error."""
    try:
        shape = torch.broadcast_shapes(a, x)
    except RuntimeError:
        raise ValueError(
            f"{function}: a has shape {tuple(a)}, which does not broadcast with x {tuple(x)}; "
            "expected equal lengths, or 1, axis by axis"
        ) from None
    letters = "m" if function == SCAN.names["step"] else "n, m"
    if len(shape) <= letters.count(","):
        raise ValueError(
            f"{function}: the shapes of a {tuple(a)} and x {tuple(x)} broadcast to "
            f"{tuple(shape)}; expected (..., {letters})"
        )
    return shape


def pairs(x: Tensor) -> Tensor:
    """Complex numbers as two columns each."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2)


def numbers(x: Tensor) -> Tensor:
    """The complex numbers of pairs of columns."""
    return torch.view_as_complex(x.unflatten(-1, (x.shape[-1] // 2, 2)))


def _state(function: str, name: str, state: Any, like: Tensor) -> State:
    """A state of pairs of columns."""
    if not isinstance(state, tuple) or not 1 <= len(state) <= 3:
        raise no_state(function, name, state, "linattn.State(s)")
    s, *others = state
    for field, x in zip(("z", "log_scale"), others, strict=False):
        if x is not None:
            raise ValueError(f"{function}: {name}.{field} is given; expected None")
    conversions.check(function, f"{name}.s", s, complex_too=True)
    if s.ndim == 0 or s.shape[-1] != like.shape[-1]:
        raise ValueError(
            f"{function}: {name}.s has shape {tuple(s.shape)}; expected (..., {like.shape[-1]})"
        )
    return State(pairs(s.to(like.dtype)))


class _Calls(NamedTuple):
    forward: Callable[..., Any]
    step: Callable[..., Any]


OPERATORS[COMPLEX.name].on_complex = _Calls(forward, step)
