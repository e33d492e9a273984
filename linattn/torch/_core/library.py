"""Operators as PyTorch knows them: a schema, shapes, gradients, vmap, autocast.

An `Operator` is in ``torch.ops.linattn``, where torch.compile, torch.export, torch.func and
autocast find it.  A plain call, on CPU tensors with none of these active, bypasses the dispatcher,
which takes 10 us to reach a kernel in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import conversions, private
from .conversions import requires_grad
from .direct import is_plain

LIBRARY = torch.library.Library("linattn", "DEF")


def name_of(argument: str) -> str:
    """The name of an argument of a schema."""
    return argument.split()[-1]


class Operator:
    """A function of tensors and numbers.

    Parameters
    ----------
    name : str
        In ``torch.ops.linattn``.
    arguments : sequence of str
        In the syntax of schemas: ``"Tensor? z"``.
    returns : int
        How many tensors.
    run : callable
        The function, on CPU tensors.
    fake : callable
        Returns tensors of the same shapes and dtypes, without computing.
    ranks : callable
        Takes the number of axes of each argument (None if it is not a tensor) and returns how many
        of them do not lead; None for an argument that vmap cannot map over.
    called : str, optional
        The function that users call, for messages; the name by default.
    gradient : callable, optional
        Takes the arguments and the gradients of the outputs (None for zeros) and returns those of
        the arguments.  Without it, differentiating raises an error.
    cast : sequence of str
        The arguments that autocast converts.
    like : sequence of str, optional
        For the operator of a gradient: the argument whose shape each output has.
    complex_too : bool, optional
        Whether tensors may be complex.
    recorded : bool, optional
        False for an operator of calls that neither autograd nor autocast has to see.
    constants : int, optional
        How many of the results, the last ones, have no gradient.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        returns: int,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        ranks: Callable[..., Sequence[int | None]],
        called: str = "",
        gradient: Callable[..., Sequence[Tensor | None]] | None = None,
        cast: Sequence[str] = (),
        like: Sequence[str] | None = None,
        complex_too: bool = False,
        recorded: bool = True,
        constants: int = 0,
    ) -> None:
        self._written = [i for i, argument in enumerate(arguments) if "!" in argument]
        if self._written:
            self._write, run = run, self._run_written
        self.name, self.run, self._ranks, self._complex_too = name, run, ranks, complex_too
        self._called = called or name
        self.names = [*map(name_of, arguments)]
        self._gradient, self._constants = gradient or self._no_gradient, constants
        self._cast = tuple(self.names.index(x) for x in cast)
        self._like = None if like is None else tuple(self.names.index(x) for x in like)
        results = "Tensor" if returns == 1 else f"({', '.join(['Tensor'] * returns)})"
        LIBRARY.define(f"{name}({', '.join(arguments)}) -> {results}")
        self.op = getattr(torch.ops.linattn, name).default
        #: What graphs call: the operator, or another function of the same arguments.
        self.traced: Callable[..., Any] = self.op
        qualified = f"linattn::{name}"
        LIBRARY.impl(name, run, "CPU")
        torch.library.register_fake(qualified, self._shapes(fake), lib=LIBRARY)
        torch.library.register_vmap(qualified, self._vmap, lib=LIBRARY)
        if recorded:
            LIBRARY.impl(name, self._autocast, "AutocastCPU")
        if self._written or not recorded:
            # PyTorch's own kernel for operators without gradients gets here without Python.
            return
        LIBRARY.impl(name, self._autograd(), "Autograd", with_keyset=True)
        self._transformed = self._function(self.op)
        self._recorded = private.applied(self._function(run))

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.traced(*args)  # its shapes are found after a check of the arguments
        if private.differentiates_forward():
            self._refuse_tangents(args)
        if is_plain(args):
            try:
                if torch.is_grad_enabled() and requires_grad(args):
                    return self._recorded(*args)
                return self.run(*args)
            except (TypeError, RuntimeError):  # a tensor may have no memory to read
                self._check(args)
                # The dispatcher resolves negative bits and conjugate ones, and the batches of
                # is_grads_batched.
                if not any(isinstance(x, Tensor) and _is_hidden(x) for x in args):
                    raise
        self._check(args)
        if not self._written and private.is_differentiated():
            return self._transformed.apply(*args)
        return self.op(*args)

    def _check(self, args: tuple[Any, ...]) -> None:
        for name, x in zip(self.names, args, strict=True):
            if isinstance(x, Tensor):
                conversions.check(self._called, name, x, complex_too=self._complex_too)
        self._check_devices(args)
        if torch.compiler.is_compiling():  # its tensors have no such bits
            return
        for i in self._written:
            if args[i] is not None and conversions.has_bits(args[i]):
                name = self.names[i]
                bit, way = ("negative", "neg") if args[i].is_neg() else ("conjugate", "conj")
                raise TypeError(
                    f"{self._called}: {name} has the {bit} bit and cannot be written to; "
                    f"expected a tensor without ({name}.resolve_{way}() makes one)"
                )

    def _check_devices(self, args: tuple[Any, ...]) -> None:
        there = [(x, y.device) for x, y in zip(self.names, args, strict=True)
                 if isinstance(y, Tensor)]  # fmt: skip
        first, device = there[0]
        for name, other in there:
            if other != device:
                raise TypeError(
                    f"{self._called}: {name} is on {other} and {first} on {device}; "
                    "expected one device for all"
                )

    def _shapes(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """``fake``, after a check of the arguments: of their devices, such as meta, too."""

        def checked(*args: Any) -> Any:
            self._check_devices(args)
            self._check(args)
            return fake(*args)

        return checked

    def _run_written(self, *args: Any) -> Any:
        if private.differentiates_forward():
            self._refuse_tangents(args)
        return self._write(*args)

    # --- gradients -------------------------------------------------------------

    def _autograd(self) -> Callable[..., Any]:
        """The operator as autograd calls it, with the dispatch keys that remain."""
        call = private.recorded(self.op, self._backward, self._setup, self.run, requires_grad)

        def checked(keys: Any, *args: Any) -> Any:
            if private.differentiates_forward():
                self._refuse_tangents(args)
            return call(keys, *args)

        return checked

    def _function(self, forward: Callable[..., Any]) -> Any:
        return type(
            f"linattn::{self.name}",
            (torch.autograd.Function,),
            {
                "generate_vmap_rule": True,
                "forward": staticmethod(forward),
                "setup_context": staticmethod(self._setup),
                "backward": staticmethod(self._backward),
                "jvp": staticmethod(self._no_tangents),
            },
        )

    def _refuse_tangents(self, args: tuple[Any, ...]) -> None:
        for x in args:
            if isinstance(x, Tensor) and private.has_tangent(x):
                self._no_tangents()

    def _no_tangents(self, *args: Any) -> Any:
        raise NotImplementedError(
            f"linattn.torch: {self._called} has no forward-mode derivative; use reverse mode "
            "(backward, torch.func.vjp or jacrev), or plain PyTorch operations"
        )

    def _setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        if self._constants:
            ctx.mark_non_differentiable(*output[-self._constants :])
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
        ctx.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)

    def _backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        args = tuple(
            y if x is None else x for x, y in zip(ctx.saved_tensors, ctx.others, strict=True)
        )
        if all(grad is None for grad in grads):
            return (None,) * len(args)
        return tuple(self._gradient(args, grads))

    def _no_gradient(self, args: Any, grads: Any) -> Any:
        raise RuntimeError(
            f"linattn.torch: gradients of gradients of {self._called} are not supported; use plain "
            "PyTorch operations where they are needed"
        )

    # --- transforms --------------------------------------------------------------

    def _autocast(self, *args: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        converted = list(args)
        for i in self._cast:
            x = args[i]
            if x is not None and x.dtype.is_floating_point and x.dtype is not torch.float64:
                converted[i] = x.to(dtype)
        with torch.autocast("cpu", enabled=False):
            return self.op(*converted)

    def _vmap(self, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """Makes the mapped axis the first leading axis of every operand."""
        axes = [
            x.ndim - (dim is not None) if isinstance(x, Tensor) else None
            for x, dim in zip(args, dims, strict=True)
        ]
        ranks = self._ranks(*axes)
        pairs = list(zip(axes, ranks, strict=True))
        most = max(a - r for a, r in pairs if a is not None and r is not None)
        mapped = list(args)
        for i, (x, dim, (a, rank)) in enumerate(zip(args, dims, pairs, strict=True)):
            if a is None:
                continue
            if rank is None:
                if dim is not None:
                    raise ValueError(
                        f"{self._called}: {self.names[i]} cannot be mapped over by vmap"
                    )
                continue
            if dim is None and i in self._written:
                raise ValueError(
                    f"{self._called}: {self.names[i]} is not mapped over by vmap, "
                    "other operands are; expected a state for each, or in_place=False"
                )
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            mapped[i] = x[(slice(None), *(None,) * (most - (a - rank)))]
        out = self.op(*mapped)
        if self._like is None:
            return out, tuple(map(_mapped_axis, out)) if isinstance(out, tuple) else 0
        shapes = [None if args[i] is None else _without(args[i].shape, dims[i]) for i in self._like]
        grads = tuple(
            x if shape is None else x.reshape(info.batch_size, *shape)
            for x, shape in zip(out, shapes, strict=True)
        )
        return grads, tuple(None if shape is None else 0 for shape in shapes)


def _is_hidden(x: Tensor) -> bool:
    """Whether a plain tensor's numbers are not those in its memory."""
    return conversions.has_bits(x) or private.is_legacy_batch(x)


def _mapped_axis(x: Tensor) -> int | None:
    """The axis of a result that vmap maps over; None for `nothing`."""
    return None if x.shape == (0,) else 0


def _without(shape: Sequence[int], dim: int | None) -> list[int]:
    return [size for i, size in enumerate(shape) if i != dim]
