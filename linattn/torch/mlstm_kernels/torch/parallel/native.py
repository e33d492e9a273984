"""mLSTM over all tokens of a sequence, without states."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._operands import refuse_states
from ..chunkwise.native import mlstm_chunkwise__native_autograd

__all__ = ["mlstm_parallel__native_autograd", "mlstm_parallel__native_custbw"]


def mlstm_parallel__native_autograd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: None = None,
    n_initial: None = None,
    m_initial: None = None,
    return_last_states: bool = False,
    eps: float = 1e-6,
    **kwargs: Any,
) -> Tensor:
    """mLSTM over all tokens, without states.

    As ``mlstm_chunkwise__native_autograd``, but m begins with the first gate and not with 0, which
    matters for eps alone.  All kernels with exponential input gates that take pairs of tokens are
    this function.

    Parameters
    ----------
    q, k : Tensor, (B, NH, S, DHQK)
        Queries and keys.
    v : Tensor, (B, NH, S, DHV)
        Values.
    i, f : Tensor, (B, NH, S)
        Input and forget gates before exp and sigma.
    c_initial, n_initial, m_initial, return_last_states
        None and False.
    eps : float
        Added to the denominator times e^-m.
    **kwargs
        Have no effect.

    Returns
    -------
    h : Tensor, (B, NH, S, DHV)

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match, or states are given or asked for.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mlstm_kernels.torch import get_mlstm_kernel
    >>> x, gate = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 3)
    >>> v = torch.tensor([2.0, 4.0, 9.0]).view(x.shape)
    >>> kernel = get_mlstm_kernel("parallel--native_custbw")
    >>> kernel(x, x, v, gate, gate + torch.inf, eps=0.0).flatten()
    tensor([2., 3., 5.])
    """
    refuse_states("mlstm_parallel", c_initial, n_initial, m_initial, return_last_states)
    first = f.new_full((*f.shape[:2], 1), -float("inf"))
    h: Tensor = mlstm_chunkwise__native_autograd(q, k, v, i, f, m_initial=first, eps=eps)
    return h


mlstm_parallel__native_custbw = mlstm_parallel__native_autograd
