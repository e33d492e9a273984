"""The operators of linattn on tensors, differentiable: names and arguments of the NumPy ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import linattn

from .._initial import recurrence_of
from .._masks import refuses_masks
from .._operator import RECURRENCES
from .._state import State
from . import _descriptions
from ._descriptions import of_recurrence
from ._docs import like
from ._operator import TensorOperator

#: Every operator, by name.
OPERATORS = {
    description.name: TensorOperator(description)
    for description in (*map(of_recurrence, RECURRENCES.values()), *_descriptions.OTHERS)
}


@refuses_masks
@like(linattn.causal)
def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: Any = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.causal` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> x = torch.ones(3, 2, requires_grad=True)
    >>> o, state = linattn.torch.causal(x, x, x, return_state=True)
    >>> o.sum().backward()
    >>> state.z
    tensor([6., 6.], grad_fn=<linattn::causal_stateBackward>)
    """
    return OPERATORS["causal"].forward(
        (q, k, v), feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
        return_state=return_state,
    )  # fmt: skip


@refuses_masks
@like(linattn.noncausal)
def noncausal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: Any = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    key_lengths: Any = None,
) -> Tensor:
    """`linattn.noncausal` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> x = torch.tensor([[0.0], [1.0], [5.0]])
    >>> linattn.torch.noncausal(x, x, x, feature_map="relu", key_lengths=2, eps=0.0)[1:]
    tensor([[1.],
            [1.]])
    """
    o: Tensor = OPERATORS["noncausal"].forward(
        (q, k, v), feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        key_lengths=key_lengths,
    )  # fmt: skip
    return o


@like(linattn.step)
def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State,
    *,
    feature_map: Any = "elu",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.step` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> state = linattn.torch.State(torch.zeros(1, 1), torch.zeros(1))
    >>> x = torch.ones(1)
    >>> o, state = linattn.torch.step(x, x, x, state)
    >>> state.s
    tensor([[2.]])
    """
    return OPERATORS["causal"].step(
        (q, k, v), state, feature_map=feature_map, normalize=normalize, eps=eps, scale=scale,
        in_place=in_place,
    )  # fmt: skip


@refuses_masks
@like(linattn.initial_state)
def initial_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Any,
    operator: str = "causal",
    feature_map: Any = "elu",
    normalize: bool = True,
    cu_seqlens: Any = None,
) -> State:
    """`linattn.initial_state` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> q = k = v = torch.ones(2, 4)
    >>> state = linattn.torch.initial_state(q, k, v, operator="step")
    >>> o, state = linattn.torch.step(q, k, v, state, in_place=True)
    >>> state.s.shape, state.z[0]
    (torch.Size([2, 4, 4]), tensor([2., 2., 2., 2.]))
    """
    recurrence, whole = recurrence_of(operator, len(others))
    return OPERATORS[recurrence.name].initial_state(
        (q, k, v, *others), operator, whole, feature_map=feature_map, normalize=normalize,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip


@refuses_masks
@like(linattn.delta)
def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.delta` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> k = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> v = torch.tensor([[3.0], [5.0]])
    >>> linattn.torch.delta(k, k, v, torch.tensor([1.0, 0.5]))
    tensor([[3.],
            [4.]])
    """
    return OPERATORS["delta"].forward(
        (q, k, v, beta), scale=scale, feature_map=feature_map, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


@like(linattn.delta_step)
def delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.delta_step` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> state = linattn.torch.State(torch.tensor([[3.0], [0.0]]))
    >>> k = torch.tensor([1.0, 0.0])
    >>> o, state = linattn.torch.delta_step(k, k, torch.tensor([5.0]), torch.tensor(0.5), state)
    >>> o
    tensor([4.])
    """
    return OPERATORS["delta"].step(
        (q, k, v, beta), state, scale=scale, feature_map=feature_map, in_place=in_place
    )


@refuses_masks
@like(linattn.gated)
def gated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    bonus: Tensor | None = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.gated` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> x = torch.ones(3, 1)
    >>> linattn.torch.gated(x, x, x, torch.full((3,), 0.5).log())
    tensor([[1.0000],
            [1.5000],
            [1.7500]])
    """
    return OPERATORS["gated"].forward(
        (q, k, v, g, bonus), scale=scale, feature_map=feature_map, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


@like(linattn.gated_step)
def gated_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    bonus: Tensor | None = None,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.gated_step` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> state = linattn.torch.State(torch.full((2, 1), 8.0))
    >>> k = torch.tensor([1.0, 0.0])
    >>> o, state = linattn.torch.gated_step(
    ...     k, k, torch.tensor([4.0]), torch.tensor(0.5).log(), state
    ... )
    >>> state.s
    tensor([[8.],
            [4.]])
    """
    return OPERATORS["gated"].step(
        (q, k, v, g, bonus), state, scale=scale, feature_map=feature_map, in_place=in_place
    )


@refuses_masks
@like(linattn.gated_delta)
def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    erase: Tensor | None = None,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.gated_delta` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> k = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> v, g = torch.tensor([[4.0], [6.0]]), torch.tensor([1.0, 0.5]).log()
    >>> linattn.torch.gated_delta(k, k, v, g, torch.tensor([1.0, 0.5]))
    tensor([[4.],
            [4.]])
    """
    return OPERATORS["gated_delta"].forward(
        (q, k, v, g, beta, erase), scale=scale, feature_map=feature_map, key_lengths=key_lengths,
        cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


@like(linattn.gated_delta_step)
def gated_delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    feature_map: Any = "identity",
    erase: Tensor | None = None,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.gated_delta_step` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> state = linattn.torch.State(torch.tensor([[4.0], [0.0]]))
    >>> k, half = torch.tensor([1.0, 0.0]), torch.tensor(0.5)
    >>> o, state = linattn.torch.gated_delta_step(
    ...     k, k, torch.tensor([6.0]), half.log(), half, state
    ... )
    >>> o
    tensor([4.])
    """
    return OPERATORS["gated_delta"].step(
        (q, k, v, g, beta, erase), state, scale=scale, feature_map=feature_map, in_place=in_place
    )


@refuses_masks
@like(linattn.dplr)
def dplr(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    scale: float = 1.0,
    key_lengths: Any = None,
    cu_seqlens: Any = None,
    initial_state: State | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.dplr` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> k = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> v = torch.tensor([[4.0], [6.0]])
    >>> linattn.torch.dplr(k, k, v, -k, k, torch.zeros(2))  # what is removed is replaced
    tensor([[4.],
            [6.]])
    """
    return OPERATORS["dplr"].forward(
        (q, k, v, a, b, g), scale=scale, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=initial_state, return_state=return_state,
    )  # fmt: skip


@like(linattn.dplr_step)
def dplr_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    state: State,
    *,
    scale: float = 1.0,
    in_place: bool = False,
) -> tuple[Tensor, State]:
    """`linattn.dplr_step` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> state = linattn.torch.State(torch.tensor([[4.0], [0.0]]))
    >>> k = torch.tensor([1.0, 0.0])
    >>> o, state = linattn.torch.dplr_step(
    ...     k, k, torch.tensor([6.0]), -k, k, torch.tensor(0.0), state
    ... )
    >>> o
    tensor([6.])
    """
    return OPERATORS["dplr"].step((q, k, v, a, b, g), state, scale=scale, in_place=in_place)


@refuses_masks
@like(linattn.causal_conv1d)
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    cu_seqlens: Any = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
) -> Any:
    """`linattn.causal_conv1d` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> x = torch.tensor([[1.0], [2.0], [4.0]])
    >>> linattn.torch.causal_conv1d(x, torch.tensor([[0.5, 1.0]])).T
    tensor([[1.0000, 2.5000, 5.0000]])
    """
    return OPERATORS["causal_conv1d"].forward(
        (x, weight, bias),
        activation=activation,
        cu_seqlens=cu_seqlens,
        initial_state=initial_state,
        return_state=return_state,
    )


@like(linattn.causal_conv1d_step)
def causal_conv1d_step(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """`linattn.causal_conv1d_step` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> o, state = linattn.torch.causal_conv1d_step(
    ...     torch.tensor([8.0]), torch.tensor([[0.5, 1.0]]), torch.tensor([[4.0]])
    ... )
    >>> o, state
    (tensor([10.]), tensor([[8.]]))
    """
    return OPERATORS["causal_conv1d"].step(
        (x, weight, bias), state, activation=activation, in_place=in_place
    )


@refuses_masks
@like(linattn.softmax_attention)
def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`linattn.softmax_attention` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> x = torch.eye(2)
    >>> linattn.torch.softmax_attention(x, x, x, causal=True, scale=1.0986123)
    tensor([[1.0000, 0.0000],
            [0.2500, 0.7500]])
    """
    return OPERATORS["softmax_attention"].forward((q, k, v), causal=causal, scale=scale)


@refuses_masks
@like(linattn.linformer)
def linformer(
    q: Tensor, k: Tensor, v: Tensor, E: Tensor, F: Tensor, *, scale: float | None = None
) -> Tensor:
    """`linattn.linformer` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> x, E = torch.ones(6, 2), torch.full((6, 3), 1 / 6)
    >>> linattn.torch.linformer(x, x, x, E, E).shape
    torch.Size([6, 2])
    """
    return OPERATORS["linformer"].forward((q, k, v, E, F), scale=scale)


@like(linattn.log_decay)
def log_decay(x: Tensor, A_log: Any, dt_bias: Any, *, lower_bound: float | None = None) -> Tensor:
    """`linattn.log_decay` on CPU tensors, differentiable.

    Examples
    --------
    >>> import torch, linattn.torch
    >>> linattn.torch.log_decay(torch.tensor([-20.0, 0.0, 20.0]), 0.0, 0.0, lower_bound=-5)
    tensor([-1.0306e-08, -2.5000e+00, -5.0000e+00])
    """
    return OPERATORS["log_decay"].forward((x, A_log, dt_bias), lower_bound=lower_bound)
