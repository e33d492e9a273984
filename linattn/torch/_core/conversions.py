"""Dtypes of tensors, conversions to them, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ..._core.checks import real
from ..._core.layout import Operand
from . import private

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: PyTorch's dtypes and NumPy's; that of bfloat16 is from ml_dtypes.
DTYPES = {getattr(torch, dtype.name): dtype for dtype in (
    BFLOAT16, *map(np.dtype, (
        np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64,
        np.uint8, np.uint16, np.uint32, np.uint64, np.bool_,
    )),
)}  # fmt: skip
#: Those of complex numbers, whose tensors may have the conjugate bit.
COMPLEX = {getattr(torch, name): np.dtype(name) for name in ("complex64", "complex128")}


def has_bits(x: Tensor) -> bool:
    """Whether a tensor's memory holds the negated or conjugated numbers."""
    return x.is_neg() or x.is_conj()


def resolved(x: Tensor) -> Tensor:
    """A tensor whose memory holds its numbers."""
    return x.resolve_neg().resolve_conj()


def dtype_of(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's dtype of a tensor's; float32 for those that linattn refuses."""
    return DTYPES.get(dtype, COMPLEX.get(dtype, np.dtype(np.float32)))


def nothing() -> Tensor:
    """The empty tensor that an operator returns in place of an absent result."""
    return torch.empty(0)


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of computations and states: float32 for 16-bit tokens."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def promotion(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The dtype that tensors of these are computed in together: PyTorch's default for integers."""
    found = None
    for dtype in dtypes:
        if dtype is not found:
            found = dtype if found is None else torch.promote_types(found, dtype)
    if found is None or not (found.is_floating_point or found.is_complex):
        return torch.get_default_dtype()
    return found


def promoted(
    function: str, operands: Sequence[Operand], given: Sequence[Any], *, complex_too: bool = False
) -> list[Any]:  # fmt: skip
    """Operands in the dtype of a call; those with the dtype of states keep theirs.

    Numbers become tensors and do not affect the dtype.  Optional operands may be None.
    """
    args = list(given)
    dtype = getattr(args[0], "dtype", None)
    for operand, x in zip(operands, args, strict=False):
        if not (isinstance(x, Tensor) and x.dtype is dtype) and not (
            x is None and operand.optional
        ):
            break
    else:
        if dtype in KNOWN[complex_too]:  # the common case, in one pass
            return args
    dtypes = []
    numbers = False
    broadcast = len({x.dims for x in operands}) == 1  # numbers too, in all their axes
    for operand, x in zip(operands, args, strict=False):
        if isinstance(x, Tensor) and x.dtype in KNOWN[complex_too]:
            pass
        elif x is None and operand.optional:
            continue
        elif isinstance(x, (int, float)) and (len(operand.dims) < 2 or broadcast):
            numbers = True
            continue
        elif isinstance(x, complex) and complex_too and any(isinstance(y, Tensor) for y in args):
            numbers = True
            dtypes.append(torch.complex64)  # the least precision
            continue
        else:
            check(function, operand.name, x, complex_too=complex_too)
        if not operand.state_dtype:
            dtypes.append(x.dtype)
    dtype = promotion(dtypes)
    for i, (operand, x) in enumerate(zip(operands, args, strict=False)):
        if isinstance(x, Tensor):
            if x.dtype is dtype:
                continue
            if not operand.state_dtype:
                args[i] = x.to(dtype)
            elif not x.dtype.is_floating_point:
                args[i] = x.to(work_dtype(dtype))
        elif numbers and x is not None:
            kind = work_dtype(dtype) if operand.state_dtype else dtype
            device = next((y.device for y in args if isinstance(y, Tensor)), None)
            number = x if isinstance(x, complex) else real(function, operand.name, x)
            args[i] = torch.tensor(number, dtype=kind, device=device)
    return args


def check_in_place(function: str, operands: Sequence[Any]) -> None:
    """Refuses to write to a state if a gradient has to pass through it."""
    if not writable(*operands):
        raise RuntimeError(
            f"{function}: in_place is True and an operand requires grad; expected "
            "in_place=False, or torch.no_grad()"
        )


def refuse_transforms(function: str) -> None:
    """Refuses torch.func's transforms, for functions that have no rules for them."""
    if not torch.compiler.is_compiling() and private.is_transformed():
        raise NotImplementedError(
            f"{function}: torch.func's transforms (grad, vjp, vmap, ...) are not supported; use "
            "backward or torch.autograd.grad, and a batch axis in place of vmap"
        )


def values(x: Tensor) -> np.ndarray[Any, Any] | None:
    """A tensor's numbers, for checks; None where there are none to see: compiled, transformed, on
    the meta device, or fake."""
    if torch.compiler.is_compiling() or private.is_wrapped(x):
        return None
    try:
        found: np.ndarray[Any, Any] = x.numpy(force=True)
    except (TypeError, RuntimeError):  # a tensor without memory
        return None
    return found


def writable(*operands: Any) -> bool:
    """Whether a step may write to its state, as no gradient passes through it."""
    return not (torch.is_grad_enabled() and requires_grad(operands))


def kept(states: Iterable[Tensor], *operands: Tensor | None) -> list[Tensor]:
    """States of a cache, copied if a gradient needs them after the model has written to them."""
    states = list(states)
    return states if writable(*states, *operands) else [x.clone() for x in states]


def requires_grad(args: Iterable[Any]) -> bool:
    if torch.compiler.is_compiling():  # the faster function cannot be traced
        return any([isinstance(x, Tensor) and x.requires_grad for x in args])
    found: bool = private.any_requires_grad(*args)
    return found


#: The dtypes that operators take without conversion; those of operators of complex numbers too.
REAL = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
KNOWN = {False: REAL, True: REAL | {*COMPLEX}}


def check(function: str, name: str, x: Any, *, complex_too: bool = False) -> None:
    """Refuses anything but tensors of real numbers, or complex ones, in this machine's memory."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; expected a tensor")
    if x.is_nested:
        raise TypeError(
            f"{function}: {name} is a nested tensor; expected a plain one (padded, with "
            "key_lengths, or packed, with cu_seqlens)"
        )
    if x.layout is not torch.strided:
        raise TypeError(
            f"{function}: {name} has layout {x.layout}; expected a strided tensor "
            f"({name}.to_dense() makes one)"
        )
    if x.is_quantized:
        raise TypeError(
            f"{function}: {name} is quantised; expected real numbers ({name}.dequantize())"
        )
    if x.dtype.is_floating_point and x.dtype not in REAL:
        known = ", ".join(map(str, sorted(REAL, key=str)))
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected one of {known}")
    if x.dtype.is_complex and x.dtype not in KNOWN[complex_too]:
        expected = "torch.complex64 or torch.complex128" if complex_too else "real numbers"
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected {expected}")
    if x.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"{function}: {name} is on {x.device}; linattn computes on CPUs: expected a tensor "
            f"there ({name}.cpu()), or use an implementation for that device"
        )
