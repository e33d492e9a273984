"""What linattn uses of PyTorch that has no public name, and why; tested with torch 2.9 to 2.15."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad
from torch.utils._pytree import GetAttrKey, _register_namedtuple, register_pytree_node

_C = torch._C

#: Whether any of the arguments requires a gradient; a loop in Python takes 1 us more.
any_requires_grad = _C._any_requires_grad
#: Of a list of tensors; torch.autograd.graph's takes 0.2 us more to look at its argument.
increment_version = _C._increment_version
#: Of a wrapped tensor: the numbers are elsewhere.  torch.func has no question for it.
is_wrapped = _C._functorch.is_functorch_wrapped_tensor
#: Whether torch.func transforms this call.
is_transformed = _C._are_functorch_transforms_active
#: Transforms that differentiate.
_DERIVATIVES = _C._functorch.TransformType.Grad, _C._functorch.TransformType.Jvp


def is_watched() -> bool:
    """Whether a feature of PyTorch but autograd, or torch.compile, has to see every operator.

    These are forward-mode derivatives, torch.func, dispatch modes, autocast, tracing and the
    profiler.  The public ways to ask, where there are any, take longer than a step.
    """
    return bool(
        forward_ad._current_level >= 0
        or is_transformed()
        or _C._len_torch_dispatch_stack()
        or torch.is_autocast_enabled("cpu")
        or _C._get_tracing_state()
        or _C._autograd._profiler_enabled()
    )


def is_differentiated() -> bool:
    """Whether torch.func differentiates this call, which takes an autograd.Function.

    That has no rule for functionalize; operators have, and for vmap.
    """
    transforms = _C._functorch.get_interpreter_stack() or ()
    return any(x.key() in _DERIVATIVES for x in transforms)


def differentiates_forward() -> bool:
    """Whether there are forward-mode derivatives."""
    return forward_ad._current_level >= 0


def has_tangent(x: Tensor) -> bool:
    """Whether x, or the tensor that vmap maps over, has a forward-mode derivative."""
    while _C._functorch.is_batchedtensor(x):
        x = _C._functorch.get_unwrapped(x)
    return forward_ad.unpack_dual(x).tangent is not None


def is_legacy_batch(x: Tensor) -> bool:
    """Whether x is the batch of is_grads_batched, which the dispatcher takes apart."""
    return bool(_C._functorch.is_legacy_batchedtensor(x))


def constant(function: Any) -> Any:
    """Marks a function of constants, which torch.compile then calls while it traces.

    As torch.compiler.assume_constant_result does, but without importing the compiler, which takes
    0.9 s.
    """
    function._dynamo_marked_constant = True
    return function


def break_graph(why: str) -> None:
    """Ends the graph that torch.compile traces; there is no public name for it."""
    torch._dynamo.graph_break(msg=why)


def recorded(op: Any, backward: Any, setup: Any, run: Any, requires_grad: Any) -> Any:
    """An operator as autograd calls it, with the dispatch keys that remain.

    torch.library.register_autograd makes one that calls every operator twice through Python, also
    where nothing is differentiated.
    """
    differentiable = make_autograd_impl(op, Info(backward, setup))

    def call(keys: Any, *args: Any) -> Any:
        below = (keys & _C._after_autograd_keyset).highestPriorityTypeId()
        if below == _C.DispatchKey.CPU and not (torch.is_grad_enabled() and requires_grad(args)):
            with _C._AutoDispatchBelowAutograd():
                return run(*args)
        return differentiable(keys, *args)

    return call


def applied(function: type[torch.autograd.Function]) -> Any:
    """Its apply, without the look at the signature of forward at each call, which takes 20 us."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def register_fields(kind: type, names: Sequence[str], make: Callable[[list[Any]], Any]) -> None:
    """Tells torch.func and torch.export of which attributes a class of their own consists."""
    register_pytree_node(
        kind,
        lambda x: ([getattr(x, name) for name in names], None),
        lambda values, _: make([*values]),
        flatten_with_keys_fn=lambda x: ([(GetAttrKey(y), getattr(x, y)) for y in names], None),
        serialized_type_name=_serialized_name(kind),
    )


def register_namedtuple(kind: type) -> None:
    """Names a named tuple to torch.export.save; PyTorch knows its fields."""
    _register_namedtuple(kind, serialized_type_name=_serialized_name(kind))


def _serialized_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
