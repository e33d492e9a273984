"""mLSTM over all tokens, under the names of kernels that take one after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..chunkwise.native import mlstm_chunkwise__native_autograd

__all__ = [
    "mlstm_recurrent_sequence__native_fw", "mlstm_recurrent_sequence__triton_step_fused_fw",
]  # fmt: skip


def mlstm_recurrent_sequence__native_fw(
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
    dtype_state: torch.dtype = torch.float32,
    **kwargs: Any,
) -> Any:
    """``mlstm_chunkwise__native_autograd``, with states of the dtype ``dtype_state``."""
    h, states = mlstm_chunkwise__native_autograd(
        q, k, v, i, f, c_initial, n_initial, m_initial, return_last_states=True, eps=eps
    )
    return (h, tuple(x.to(dtype_state) for x in states)) if return_last_states else h


mlstm_recurrent_sequence__triton_step_fused_fw = mlstm_recurrent_sequence__native_fw
