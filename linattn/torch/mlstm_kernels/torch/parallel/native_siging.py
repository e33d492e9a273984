"""mLSTM with sigmoid input gates over all tokens of a sequence, without states."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._operands import refuse_states
from ..chunkwise.triton_xl_chunk_siging import mlstm_siging_chunkwise__xl_chunk

__all__ = ["mlstm_siging_parallel__native_autograd", "mlstm_siging_parallel__native_custbw"]


def mlstm_siging_parallel__native_autograd(
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
    stable_fgate: bool = True,
    normalize: bool = True,
    **kwargs: Any,
) -> Tensor:
    """``mlstm_siging_chunkwise__xl_chunk`` without states.

    Parameters
    ----------
    q, k : Tensor, (B, NH, S, DHQK)
        Queries and keys.
    v : Tensor, (B, NH, S, DHV)
        Values.
    i, f : Tensor, (B, NH, S)
        Input and forget gates before sigma.
    c_initial, n_initial, m_initial, return_last_states
        None and False.
    eps : float
        Added to the denominator.
    stable_fgate : bool
        Has no effect.
    normalize : bool
        Whether to divide.
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
    >>> x, gate = torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 4)
    >>> kernel = get_mlstm_kernel("parallel--native_siging_custbw")
    >>> kernel(x, x, x, gate, gate + torch.inf, eps=0.0).flatten()
    tensor([0.5000, 1.0000, 1.0000, 1.0000])
    """
    refuse_states("mlstm_siging_parallel", c_initial, n_initial, m_initial, return_last_states)
    h: Tensor = mlstm_siging_chunkwise__xl_chunk(q, k, v, i, f, eps=eps, normalize=normalize)
    return h


mlstm_siging_parallel__native_custbw = mlstm_siging_parallel__native_autograd
