"""From tensors to NumPy's functions and back: the one way in.

A tensor is lent to a function of NumPy's as an array of the same memory; what comes back as it went
in has been written to (src/ext/tensor_call.c).  Calls that PyTorch need not see, of plain tensors
without a gradient, go this way at once; the others through an `Operator`, whose kernel then does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._core.gufuncs import internal_ufuncs
from ..._linattn import (
    tensor_array,
    tensor_call,
    tensor_planned,
    tensor_step,
    tensor_update,
)
from ..._states.state_arrays import updated
from . import private
from .conversions import BFLOAT16, COMPLEX, DTYPES, REAL, has_bits

PLAIN = Tensor, torch.nn.Parameter  #: the classes of tensors that no subclass changes


def tensor(x: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the array's memory; of a copy if elements share it, or are in reverse."""
    if not x.flags.c_contiguous and x.size and min(x.strides) <= 0:
        x = x.copy()
    if x.dtype == BFLOAT16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


_ALL = DTYPES | COMPLEX
_REAL = {x: y for x, y in DTYPES.items() if x in REAL}
_CLASSES = PLAIN, getattr(Tensor, "__dlpack_c_exchange_api__", None)
_PYTORCH = private.increment_version, torch.get_num_threads


def _lent(operands: dict[torch.dtype, np.dtype[Any]]) -> tuple[Any, ...]:
    """What tensors are to the C code, from the dtypes that operands may have."""
    return *_CLASSES, operands, _ALL, torch.from_numpy, tensor, *_PYTORCH


_LENT = {False: _lent(_REAL), True: _lent(_REAL | COMPLEX)}  #: by whether they may be complex
_SEEN = _lent(_ALL)  #: in the kernel of an operator


def direct(
    function: Callable[..., Any], operands: Sequence[Any], given: dict[str, Any],
    options: dict[str, Any], *, complex_too: bool = False,
) -> Any:  # fmt: skip
    """What ``function(operands, **given, **options)`` of NumPy's gives for these tensors.

    Tensors may be operands and what is given, and in tuples there.  NotImplemented if PyTorch has
    to see the call, or if operands need a conversion.
    """
    if private.is_watched():
        return NotImplemented
    return tensor_call(
        _LENT[complex_too], torch.is_grad_enabled(), function, tuple(operands), given, options
    )  # fmt: skip


def update(name: str, inputs: tuple[Any, ...], states: tuple[Any, ...], indices: Any = None) -> Any:
    """The result of a step's gufunc, which updates states, or rows of them: tensors.

    NotImplemented, with nothing written, if PyTorch has to see the call, or if anything needs a
    conversion or is wrong.
    """
    if torch.compiler.is_compiling() or private.is_watched():
        return NotImplemented
    gufunc = internal_ufuncs[name]  # makes it, which graphs cannot
    return tensor_update(
        _LENT[False], torch.is_grad_enabled(), gufunc, inputs, states, indices
    )  # fmt: skip


def planned(
    plans: tuple[tuple[Any, ...], ...], named: dict[str, Any], states: tuple[Any, ...], indices: Any
) -> Any:
    """The same by the first plan for these arguments; plans are as in src/ext/tensor_update.h."""
    if torch.compiler.is_compiling() or private.is_watched():
        return NotImplemented
    return tensor_planned(_LENT[False], torch.is_grad_enabled(), plans, named, states, indices)


def compute(
    function: Callable[..., Any], operands: Sequence[Any], given: dict[str, Any],
    options: dict[str, Any],
) -> Any:  # fmt: skip
    """The same in the kernel of an operator, which PyTorch has called."""
    return tensor_call(_SEEN, None, function, tuple(operands), given, options)


def plain_step(step: tuple[Any, ...]) -> Callable[..., Any]:
    """A function of ``in_place`` and the arguments of an operator of PyTorch, in its kernel.

    It returns o, s and z of a step that needs nothing of Python; otherwise NotImplemented, and then
    `compute` has to.  ``step`` is as in src/ext/tensor_call.h.
    """
    return partial(tensor_step, _SEEN, step)


def is_plain(args: Iterable[Any]) -> bool:
    """Whether no feature of PyTorch but autograd has to see a call with these arguments."""
    if torch.compiler.is_compiling() or private.is_watched():
        return False
    return all([
        x.is_cpu and not has_bits(x) if type(x) in PLAIN else not isinstance(x, Tensor)
        for x in args
    ])  # fmt: skip


def array(x: Tensor) -> np.ndarray[Any, Any]:
    """An array of the tensor's memory, whose storage stays resizable, unlike with ``x.numpy()``.

    Raises TypeError or RuntimeError if the tensor has no such memory.
    """
    return tensor_array(_SEEN, x)


def check_memory(function: str, fields: Mapping[str, Tensor]) -> None:
    """Refuses to write to tensors that share memory, or whose elements do."""
    if torch.compiler.is_compiling():
        return
    try:
        memory = {name: array(x) for name, x in fields.items()}
    except (TypeError, RuntimeError):  # a tensor without memory
        return
    updated(function, memory)
