"""The state of log-linear attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class LogLinearAttentionState:
    """What `chunk_log_linear_attn` keeps of the tokens so far.

    Parameters
    ----------
    ht : Tensor, [N, M, H, K, V]
        States of the chunks so far: entry b is that of 2^b chunks if bit b of their number is set.
    offsets : Tensor of int, [N]
        The number of tokens so far.
    q_prev, k_prev : Tensor, [N, 64, G, K]
        Queries and keys of the last chunk, which is not complete.
    v_prev : Tensor, [N, 64, H, V]
        Its values.
    g_prev : Tensor, [N, 64, H]
        Its log decays.
    level_scales_prev : Tensor, [N, 64, H, L]
        Its scales.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x, scales = torch.ones(1, 70, 2, 4), torch.ones(1, 70, 2, 8)
    >>> _, state = fla.chunk_log_linear_attn(
    ...     x, x, x, 0 * x[..., 0], scales, output_final_state=True
    ... )
    >>> state.offsets, state.ht.shape
    (tensor([70], dtype=torch.int32), torch.Size([1, 1, 2, 4, 4]))
    """

    ht: Tensor
    offsets: Tensor
    q_prev: Tensor
    k_prev: Tensor
    v_prev: Tensor
    g_prev: Tensor
    level_scales_prev: Tensor
