"""The scan of Mamba-3 with writes of rank one (SISO)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...._axes import check_states, check_tokens
from ...._mamba3 import Memory, Rows, gate, whole

__all__ = ["mamba3_siso_combined"]


def mamba3_siso_combined(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    Angles: Tensor,
    D: Tensor | None = None,
    Z: Tensor | None = None,
    Input_States: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    chunk_size: int = 64,
    return_final_states: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Any:
    """The scan of Mamba-3, rank one: as linear attention with rotated queries and keys.

    ``s_t = exp(ADT_t) (s_{t-1} + (1 - l_t) DT_t v_{t-1} k_{t-1}^T) + l_t DT_t v_t k_t^T`` and
    ``out_t = (s_t q_t + D v_t) silu(Z_t)``, where l is sigmoid(Trap), and q and k are
    ``Q + Q_bias`` and ``K + K_bias``, rotated by the sum of ``pi tanh(Angles) DT`` so far.

    Parameters
    ----------
    Q, K : Tensor, (batch, seqlen, nheads_qk, headdim_qk)
        nheads_qk is a divisor of nheads, headdim_qk is even.
    V : Tensor, (batch, seqlen, nheads, headdim_v)
        Values.
    ADT, DT : Tensor, (batch, nheads, seqlen)
        Log decays and time steps.
    Trap : Tensor, (batch, nheads, seqlen)
        Its sigmoid is the weight of a token's own key, beside that of the one before.
    Q_bias, K_bias : Tensor, (nheads, headdim_qk)
        Added to queries and keys.
    Angles : Tensor, (batch, seqlen, nheads, headdim_angles)
        Angle i rotates channels 2 i and 2 i + 1; the others stay.
    D : Tensor, (nheads,), optional
        Multiplies V.
    Z : Tensor, of the shape of V, optional
        The gate.
    Input_States : tuple of Tensors, optional
        The angles (sequences, nheads, headdim_angles), states (sequences, nheads, headdim_v,
        headdim_qk), and the last rotated key (sequences, nheads, headdim_qk) and value (sequences,
        nheads, headdim_v), as they are returned.
    chunk_size : int
        Tunes GPU kernels; ignored here.
    return_final_states : bool
        Also return what follows the last token of each sequence.
    cu_seqlens : Tensor of int, (sequences + 1,), optional
        Bounds of sequences that are packed in a batch of one.

    Returns
    -------
    out : Tensor, (batch, seqlen, nheads, headdim_v)
        Of the dtype of V.
    angles, states, key, value : Tensor
        Only with ``return_final_states``: like ``Input_States``, the first two in float32 or
        float64.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Notes
    -----
    mamba_ssm rounds operands to bfloat16; here they keep their precision, and computations are in
    float32 or float64.

    References
    ----------
    Lahoti et al., "Mamba-3: Improved Sequence Modeling using State Space Principles", 2026

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import (
    ...     mamba3_siso_combined,
    ... )
    >>> q, v, one = torch.ones(1, 3, 1, 2), torch.ones(1, 3, 1, 1), torch.ones(1, 1, 3)
    >>> mamba3_siso_combined(
    ...     q, q, v, 0 * one, one, 0 * one, q[0, 0] * 0, q[0, 0] * 0, 0 * v
    ... ).flatten()
    tensor([1., 3., 5.])
    """
    given = {
        "Q": Q, "K": K, "V": V, "ADT": ADT, "DT": DT, "Trap": Trap, "Q_bias": Q_bias,
        "K_bias": K_bias, "Angles": Angles, "D": D, "Z": Z,
    }  # fmt: skip
    sizes = check_tokens("mamba3_siso_combined", AXES, given, ("D", "Z"), cu_seqlens)
    start, rows = None, Rows(len(V), V.shape[1], cu_seqlens)
    if Input_States is not None:
        check_states("mamba3_siso_combined", Input_States, sizes)
        angles, s, k, v = Input_States
        start = Memory(angles, s, k.unsqueeze(1), v.unsqueeze(1))
    y, after = whole(
        Q.unsqueeze(2), K.unsqueeze(2), V.unsqueeze(2), ADT, DT, Trap, Q_bias.unsqueeze(1),
        K_bias.unsqueeze(1), Angles, D, start, rows, True,
    )  # fmt: skip
    out = gate(y, Z).squeeze(2).to(V.dtype).contiguous()
    if not return_final_states:
        return out
    return out, after.angles, after.s, after.k[:, 0].to(K.dtype), after.v[:, 0].to(V.dtype)


AXES = {
    "Q": "btgn", "K": "btgn", "Q_bias": "hn", "K_bias": "hn", "D": "h", "Z": "bthp",
}  # fmt: skip
