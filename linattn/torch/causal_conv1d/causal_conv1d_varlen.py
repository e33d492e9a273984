"""The states of packed sequences."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F

from ..fla._layout import check_axes, check_tensor

__all__ = ["causal_conv1d_varlen_states"]


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last tokens of each packed sequence; zeros before its first token.

    Parameters
    ----------
    x : Tensor, (total_tokens, dim)
        The sequences, one after another.
    cu_seqlens : Tensor of int, (batch + 1,)
        Their bounds.
    state_len : int
        How many tokens a state has.

    Returns
    -------
    states : Tensor, (batch, dim, state_len)

    Raises
    ------
    TypeError
        If an operand is not a tensor.
    ValueError
        If x has the wrong number of axes.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.causal_conv1d import causal_conv1d_varlen_states
    >>> x = torch.tensor([[1.0], [2.0], [4.0]])
    >>> causal_conv1d_varlen_states(x, torch.tensor([0, 1, 3]), 2)
    tensor([[[0., 1.]],
    <BLANKLINE>
            [[2., 4.]]])
    """
    name = "causal_conv1d_varlen_states"
    check_axes(name, "x", x, 2, "two axes, (total_tokens, dim)")
    check_tensor(name, "cu_seqlens", cu_seqlens)
    begin, end = cu_seqlens[:-1, None].long(), cu_seqlens[1:, None].long()
    at = end + torch.arange(-state_len, 0, device=x.device)  # (batch, state_len)
    if not len(x):
        return x.new_zeros(len(begin), x.shape[1], state_len)
    states = torch.where((at >= begin)[..., None], x[at.clamp(min=0)], 0)
    return states.mT


def causal_conv1d_varlen_states_ref(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """`causal_conv1d_varlen_states`, one sequence after another."""
    states = []
    for begin, end in itertools.pairwise(cu_seqlens.tolist()):
        last = x[max(begin, end - state_len) : end].mT
        states.append(F.pad(last, (state_len - last.shape[1], 0)))
    return torch.stack(states)
