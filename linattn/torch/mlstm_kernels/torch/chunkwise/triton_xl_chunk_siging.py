"""mLSTM with sigmoid input gates over all tokens of a sequence, of any number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....._states.state_arrays import State
from ....operators import gated
from ..._operands import SEQUENCE, checked

__all__ = ["mlstm_siging_chunkwise__xl_chunk"]


def mlstm_siging_chunkwise__xl_chunk(
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
    normalize: bool = True,
    chunk_size: int = 128,
    **kwargs: Any,
) -> Any:
    """mLSTM with sigmoid input gates: `linattn.torch.gated`, with keys times sigma(i).

    ``c_t = sigma(f_t) c_{t-1} + sigma(i_t) k_t v_t^T``, n alike,
    ``h_t = c_t^T q_t / (max(|n_t.q_t|, 1) + eps)`` with q / sqrt(DHQK).

    Parameters
    ----------
    q, k : Tensor, (B, NH, S, DHQK)
        Queries and keys.
    v : Tensor, (B, NH, S, DHV)
        Values.
    i, f : Tensor, (B, NH, S)
        Input and forget gates before sigma.
    c_initial, n_initial : Tensor, (B, NH, DHQK, DHV), (B, NH, DHQK), optional
        The state before the first token; zeros by default.
    m_initial
        Has no effect.
    return_last_states : bool
        Also return the state after the last token.
    eps : float
        Added to the denominator.
    normalize : bool
        Whether to divide.
    chunk_size, **kwargs
        Have no effect.

    Returns
    -------
    h : Tensor, (B, NH, S, DHV)
    states : tuple of Tensor
        c and n where ``return_last_states``; float32 for 16-bit operands.

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
    >>> x, gate = torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 4)
    >>> kernel = get_mlstm_kernel("chunkwise--triton_xl_chunk_siging")
    >>> kernel(x, x, x, gate, gate + torch.inf, normalize=False).flatten()
    tensor([0.5000, 1.0000, 1.5000, 2.0000])
    """
    given = q, k, v, i, f, c_initial, n_initial, None
    _, (c, n, _) = checked("mlstm_siging_chunkwise", SEQUENCE, given)
    dtype, width = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype), v.shape[-1]
    q, k, v, i, f = (x.to(c.dtype) for x in (q, k, v, i, f))
    # A last channel of ones, whose memory is n.
    o, end = gated(
        q, k * i.sigmoid()[..., None], F.pad(v, (0, 1), value=1.0), F.logsigmoid(f),
        scale=max(q.shape[-1], 1) ** -0.5, return_state=True,
        initial_state=State(torch.cat((c, n[..., None]), -1)),
    )  # fmt: skip
    h, sums = o[..., :width], o[..., width:]
    h = (h / (sums.abs().clamp(min=1) + eps) if normalize else h).to(dtype)
    return (h, (end.s[..., :width], end.s[..., width])) if return_last_states else h
