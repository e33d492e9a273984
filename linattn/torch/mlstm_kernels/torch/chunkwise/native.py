"""mLSTM over all tokens of a sequence, of any number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....._states.state_arrays import State
from ....operators import mlstm
from ..._operands import SEQUENCE, checked

__all__ = ["mlstm_chunkwise__native_autograd", "mlstm_chunkwise__native_custbw"]


def mlstm_chunkwise__native_autograd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool = False,
    eps: float = 1e-6,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Any:
    """mLSTM over all tokens, as `linattn.torch.mlstm`.

    All kernels with exponential input gates that take chunks are this function.

    Parameters
    ----------
    q, k : Tensor, (B, NH, S, DHQK)
        q is multiplied by 1 / sqrt(DHQK).
    v : Tensor, (B, NH, S, DHV)
        Values.
    i, f : Tensor, (B, NH, S)
        Input and forget gates before exp and sigma.
    c_initial, n_initial, m_initial : Tensor, optional
        The state before the first token: memory (B, NH, DHQK, DHV) and sum of keys (B, NH, DHQK)
        relative to e^m, and m (B, NH, 1); zeros by default.
    return_last_states : bool
        Also return the state after the last token.
    eps : float
        Added to the denominator times e^-m.
    chunk_size, **kwargs
        Have no effect, and S need not be a multiple of chunk_size.

    Returns
    -------
    h : Tensor, (B, NH, S, DHV)
        Of the dtype of q, k and v.
    states : tuple of Tensor
        c, n and m where ``return_last_states``; float32 for 16-bit operands.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mlstm_kernels.torch import get_mlstm_kernel
    >>> x, gate = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 3)
    >>> kernel = get_mlstm_kernel("chunkwise--native_autograd")
    >>> h, (c, n, m) = kernel(x, x, x, gate, gate + torch.inf, return_last_states=True)
    >>> c  # three tokens, and nothing forgotten
    tensor([[[[3.]]]])
    """
    given = q, k, v, i, f, c_initial, n_initial, m_initial
    operands, (c, n, m) = checked("mlstm_chunkwise", SEQUENCE, given)
    h, end = mlstm(*operands, initial_state=State(c, n, m[..., 0]), return_state=True, eps=eps)
    h = h.to(torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype))
    return (h, (end.s, end.z, end.log_scale[..., None])) if return_last_states else h


mlstm_chunkwise__native_custbw = mlstm_chunkwise__native_autograd
