"""One token of mLSTM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....._states.state_arrays import State
from ....operators import mlstm_step
from ..._operands import TOKEN, checked

__all__ = ["mlstm_recurrent_step__native"]


def mlstm_recurrent_step__native(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    eps: float = 1e-6,
    dtype_state: torch.dtype = torch.float32,
    **kwargs: Any,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """One token of mLSTM, as `linattn.torch.mlstm_step`.

    Parameters
    ----------
    q, k : Tensor, (B, NH, DHQK)
        Queries and keys.
    v : Tensor, (B, NH, DHV)
        Values.
    i, f : Tensor, (B, NH, 1)
        Input and forget gates before exp and sigma.
    c, n, m : Tensor, (B, NH, DHQK, DHV), (B, NH, DHQK), (B, NH, 1)
        The state before the token, which is not changed.
    eps : float
        Added to the denominator times e^-m.
    dtype_state : torch.dtype
        Of the state after the token.
    **kwargs
        Have no effect.

    Returns
    -------
    h : Tensor, (B, NH, DHV)
        Of the dtype of q, k and v.
    states : tuple of Tensor
        c, n and m.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mlstm_kernels.torch import get_mlstm_step_kernel
    >>> x, gate = torch.ones(1, 1, 2), torch.zeros(1, 1, 1)
    >>> state = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2), gate
    >>> h, (c, n, m) = get_mlstm_step_kernel("native")(x, x, x, gate, gate, *state)
    >>> n
    tensor([[[1., 1.]]])
    """
    (q, k, v, i, f), (c, n, m) = checked("mlstm_recurrent_step", TOKEN, (q, k, v, i, f, c, n, m))
    state = State(c, n, m[..., 0])
    h, (c, n, m) = mlstm_step(q, k, v, i[..., 0], f[..., 0], state, eps=eps)
    return h, (c.to(dtype_state), n.to(dtype_state), m[..., None].to(dtype_state))
