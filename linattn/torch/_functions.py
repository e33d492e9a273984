"""Functions of tensors that are no recurrences: softmax, Linformer, decays, the convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_step
from ..decay import log_decay, log_decay_backward
from ..linformer import linformer, linformer_backward
from ..softmax import softmax_attention, softmax_attention_backward
from . import _tensors
from ._library import Operator
from ._tensors import array, maybe_array, tensor, tensors, threads, work_dtype


class Function:
    """A function of the NumPy package, differentiable on tensors.

    Parameters
    ----------
    name : str
        In ``torch.ops.linattn``.
    operands : dict of str to int
        The tensors, and how many axes of each are no leading ones.
    options : sequence of str
        The rest of the schema.
    forward, backward : callable
        The NumPy functions: ``forward(*operands, **options)`` and
        ``backward(*operands, grad_out, **options)``.
    core : callable
        From the operands, the axes of the result that are no leading ones.
    cast : bool
        Whether autocast converts the operands.
    """

    def __init__(
        self, name: str, operands: dict[str, int], options: Sequence[str],
        forward: Callable[..., Any], backward: Callable[..., Any],
        core: Callable[..., Sequence[int]], *, cast: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.operands, self._core = name, operands, core
        self._options = [x.split()[-1] for x in options]
        self._forward, self._backward = forward, backward
        arguments = [*(f"Tensor {x}" for x in operands), *options]
        ranks = [*operands.values(), *(None for _ in options)]
        self._op = Operator(
            name, arguments, "Tensor", self._run, self._fake,
            ranks=lambda *axes: ranks, gradient=self._gradient,
            cast=tuple(operands) if cast else (),
        )  # fmt: skip
        self._grads = Operator(
            f"{name}_backward", ["Tensor grad_out", *arguments],
            f"({', '.join(['Tensor'] * len(operands))})",
            self._run_backward, lambda grad, *args: self._empty(args),
            ranks=lambda *axes: [max(operands.values()), *ranks], like=tuple(operands),
        )  # fmt: skip

    def __call__(self, *operands: Any, **options: Any) -> Tensor:
        given = dict(zip(self.operands, operands, strict=True))
        values = (options[x] for x in self._options)
        result: Tensor = self._op(*promoted(self.name, given), *values)
        return result

    def _split(self, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        count = len(self.operands)
        return list(args[:count]), dict(zip(self._options, args[count:], strict=True))

    def _run(self, *args: Any) -> Tensor:
        operands, options = self._split(args)
        with threads():
            return tensor(self._forward(*map(array, operands), **options), operands[0].dtype)

    def _run_backward(self, grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
        operands, options = self._split(args)
        with threads():
            grads = self._backward(*map(array, operands), array(grad), **options)
        return tensors(grads, operands)

    def _fake(self, *args: Any) -> Tensor:
        operands, _ = self._split(args)
        leads = [
            x.shape[: x.ndim - rank]
            for x, rank in zip(operands, self.operands.values(), strict=True)
        ]
        lead = torch.broadcast_shapes(*leads)
        return operands[0].new_empty((*lead, *self._core(*operands)))

    def _empty(self, args: Sequence[Any]) -> tuple[Tensor, ...]:
        operands, _ = self._split(args)
        return tuple(x.new_empty(x.shape) for x in operands)

    def _gradient(self, args: Sequence[Any], grads: Sequence[Any]) -> Any:
        return *self._grads(grads[0], *args), *(None for _ in self._options)


def promoted(name: str, operands: dict[str, Any]) -> list[Any]:
    """The tensors in one dtype; Python's numbers follow them, None stays."""
    device, dtypes = None, []
    for argument, x in operands.items():
        if isinstance(x, (int, float)) or x is None:
            continue
        if not isinstance(x, Tensor) or x.dtype not in _tensors.REAL:
            _tensors.check(name, argument, x)
        dtypes.append(x.dtype)
        device = x.device
    dtype = _tensors.promotion(dtypes)
    return [
        x if x is None
        else x.to(dtype) if isinstance(x, Tensor)
        else torch.tensor(x, dtype=dtype, device=device)
        for x in operands.values()
    ]  # fmt: skip


def _rows(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[int, int]:
    return q.shape[-2], v.shape[-1]


SOFTMAX = Function(
    "softmax_attention", {"q": 2, "k": 2, "v": 2}, ["bool causal", "float? scale"],
    softmax_attention, softmax_attention_backward, _rows,
)  # fmt: skip
LINFORMER = Function(
    "linformer", {"q": 2, "k": 2, "v": 2, "E": 2, "F": 2}, ["float? scale"],
    linformer, linformer_backward, _rows,
)  # fmt: skip
LOG_DECAY = Function(
    "log_decay", {"x": 0, "A_log": 0, "dt_bias": 0}, ["float? lower_bound"],
    log_decay, log_decay_backward, lambda *x: (), cast=False,
)  # fmt: skip


# --- the convolution --------------------------------------------------------------


class _Convolution:
    """`linattn.causal_conv1d` with and without states, and its step."""

    def __init__(self) -> None:
        name = "causal_conv1d"
        token = ["Tensor x", "Tensor weight", "Tensor? bias", "str? activation"]
        whole = [*token, "Tensor? cu_seqlens"]
        cast, like = ("x", "weight", "bias"), ("x", "weight", "bias")
        self.whole = Operator(
            name, whole, "Tensor", self._run, self._fake,
            ranks=self._ranks, gradient=self._gradient, cast=cast,
        )  # fmt: skip
        self.parts = Operator(
            f"{name}_state", [*whole, "Tensor? s"], "(Tensor, Tensor)", self._run, self._fake,
            ranks=self._ranks, gradient=self._gradient, cast=cast,
        )  # fmt: skip
        self.whole_backward = Operator(
            f"{name}_backward", ["Tensor grad_out", *whole], "(Tensor, Tensor, Tensor)",
            self._run_backward, self._fake_backward,
            ranks=lambda grad, *axes: [2, *self._ranks(*axes)], like=like,
        )  # fmt: skip
        self.parts_backward = Operator(
            f"{name}_state_backward",
            ["Tensor grad_out", "Tensor? grad_s", *whole, "Tensor? s"],
            "(Tensor, Tensor, Tensor, Tensor)", self._run_state_backward, self._fake_state_backward,
            ranks=lambda grad, last, *axes: [2, self._ranks(*axes)[-1], *self._ranks(*axes)],
            like=(*like, "s"),
        )  # fmt: skip
        self.new_step = Operator(
            f"{name}_step", [*token, "Tensor s"], "(Tensor, Tensor)", self._run_step,
            lambda *args: (args[0].new_empty(self._step_lead(args)), self._step_state(args)),
            ranks=lambda *axes: [1, 2, 1, None, 2], gradient=self._gradient_step, cast=cast,
        )  # fmt: skip
        self.step_in_place = Operator(
            f"{name}_step_", [*token, "Tensor(a!) s"], "Tensor", self._run_step_in_place,
            lambda *args: args[0].new_empty(self._step_lead(args)),
            ranks=lambda *axes: [1, 2, 1, None, 2],
        )  # fmt: skip

    @staticmethod
    def _ranks(*axes: int | None) -> list[int | None]:
        return [2, 2, 1, None, None, 2 + (axes[4] is not None)][: len(axes)]

    # shapes

    @staticmethod
    def _lead(x: Tensor, weight: Tensor, bias: Tensor | None, *, own: int) -> Any:
        leads = [x.shape[:-own], weight.shape[:-2], *([] if bias is None else [bias.shape[:-1]])]
        return torch.broadcast_shapes(*leads)

    def _fake(self, *args: Any) -> Any:
        x, weight, bias, _, cu_seqlens, *state = args
        lead = self._lead(x, weight, bias, own=2)
        o = x.new_empty((*lead, *x.shape[-2:]))
        if not state:
            return o
        inner = lead if cu_seqlens is None else (*lead, cu_seqlens.shape[0] - 1)
        core = weight.shape[-2], weight.shape[-1] - 1
        return o, x.new_empty((*inner, *core), dtype=work_dtype(x.dtype))

    def _fake_backward(self, grad: Tensor, *args: Any) -> Any:
        return tuple(_tensors.nothing() if x is None else x.new_empty(x.shape) for x in args[:3])

    def _fake_state_backward(self, grad: Tensor, last: Any, *args: Any) -> Any:
        s = self._fake(*args)[1] if args[5] is None else args[5]
        return *self._fake_backward(grad, *args), s.new_empty(s.shape)

    def _step_lead(self, args: Sequence[Any]) -> Any:
        return (*self._lead(*args[:3], own=1), args[0].shape[-1])

    def _step_state(self, args: Sequence[Any]) -> Tensor:
        s: Tensor = args[4].new_empty((*self._lead(*args[:3], own=1), *args[4].shape[-2:]))
        return s

    # computing

    @staticmethod
    def _call(args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        options = {"activation": args[3]}
        if len(args) > 4:
            options["cu_seqlens"] = maybe_array(args[4])
        return tuple(map(maybe_array, args[:3])), options

    def _run(self, *args: Any) -> Any:
        operands, options = self._call(args)
        with threads():
            if len(args) == 5:
                return tensor(causal_conv1d(*operands, **options))
            o, s = causal_conv1d(
                *operands, **options, initial_state=maybe_array(args[5]), return_state=True
            )
        return tensor(o), tensor(s)

    def _run_backward(self, grad: Tensor, *args: Any) -> Any:
        (x, weight, bias), options = self._call(args)
        with threads():
            dx, dw, *db = causal_conv1d_backward(x, weight, array(grad), bias, **options)
        return tensors((dx, dw, db[0] if db else None), args[:3])

    def _run_state_backward(self, grad: Tensor, last: Tensor | None, *args: Any) -> Any:
        (x, weight, bias), options = self._call(args)
        if last is None:
            last = torch.zeros_like(self._fake(*args)[1])
        with threads():
            dx, dw, *db, ds = causal_conv1d_backward(
                x, weight, array(grad), bias, **options,
                initial_state=maybe_array(args[5]), grad_state=array(last),
            )  # fmt: skip
        return tensors((dx, dw, db[0] if db else None, ds), (*args[:3], args[5]))

    def _run_step(self, *args: Any) -> Any:
        (x, weight, bias), options = self._call(args[:4])
        with threads():
            o, s = causal_conv1d_step(x, weight, array(args[4]), bias, **options)
        return tensor(o), tensor(s)

    def _run_step_in_place(self, *args: Any) -> Tensor:
        (x, weight, bias), options = self._call(args[:4])
        with threads():
            o, _ = causal_conv1d_step(x, weight, array(args[4]), bias, **options, in_place=True)
        return tensor(o)

    # gradients

    def _gradient(self, args: Sequence[Any], grads: Sequence[Any]) -> Any:
        grad = grads[0]
        if grad is None:
            grad = torch.zeros_like(self._fake(*args)[0])
        bias = args[2] is not None
        if len(args) == 5:
            dx, dw, db = self.whole_backward(grad, *args)
            return dx, dw, db if bias else None, None, None
        dx, dw, db, ds = self.parts_backward(grad, grads[1], *args)
        return dx, dw, db if bias else None, None, None, ds if args[5] is not None else None

    def _gradient_step(self, args: Sequence[Any], grads: Sequence[Any]) -> Any:
        x, weight, bias, activation, s = args
        grad = None if grads[0] is None else grads[0].unsqueeze(-2)
        whole = x.unsqueeze(-2), weight, bias, activation, None, s
        dx, dw, db, _, _, ds = self._gradient(whole, (grad, grads[1]))
        return dx.squeeze(-2), dw, db, None, ds

    # what users call

    def forward(
        self, x: Any, weight: Any, bias: Any, activation: str | None, cu_seqlens: Any,
        initial_state: Tensor | None, return_state: bool,
    ) -> Any:  # fmt: skip
        name = "causal_conv1d"
        args = promoted(name, {"x": x, "weight": weight, "bias": bias})
        if cu_seqlens is not None and not isinstance(cu_seqlens, Tensor):
            cu_seqlens = torch.as_tensor(cu_seqlens, device=args[0].device)
        args += [activation, cu_seqlens]
        if initial_state is None and not return_state:
            return self.whole(*args)
        if initial_state is not None:
            _tensors.check(name, "initial_state", initial_state)
            initial_state = initial_state.to(work_dtype(args[0].dtype))
        o, s = self.parts(*args, initial_state)
        return (o, s) if return_state else o

    def step(
        self, x: Any, weight: Any, state: Tensor, bias: Any, activation: str | None, in_place: bool
    ) -> tuple[Tensor, Tensor]:
        name = "causal_conv1d_step"
        args = [*promoted(name, {"x": x, "weight": weight, "bias": bias}), activation]
        _tensors.check(name, "state", state)
        if not in_place:
            o, s = self.new_step(*args, state.to(work_dtype(args[0].dtype)))
            return o, s
        _tensors.check_in_place(name, (*args, state))
        return self.step_in_place(*args, state), state


CONVOLUTION = _Convolution()
