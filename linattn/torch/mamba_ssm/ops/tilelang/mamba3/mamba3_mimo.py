"""The scan of Mamba-3 with writes of rank R (MIMO)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....._core.conversions import work_dtype
from ...._axes import check_tokens
from ...._mamba3 import Rows, gate, whole

__all__ = ["mamba3_mimo"]


def mamba3_mimo(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    MIMO_V: Tensor,
    MIMO_Z: Tensor | None,
    MIMO_Out: Tensor | None,
    Angles: Tensor,
    D: Tensor | None,
    Z: Tensor | None,
    chunk_size: int,
    rotary_dim_divisor: int,
    dtype: torch.dtype,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    fuse_pregate_headwise_rms_norm: bool = False,
    outproj_norm_weight: Tensor | None = None,
    outproj_norm_eps: float = 1e-5,
) -> Any:
    """The scan of Mamba-3 with R keys, values and queries a token.

    ``s_t = exp(ADT_t) (s_{t-1} + (1 - l_t) DT_t sum_r v_{t-1,r} k_{t-1,r}^T) + l_t DT_t sum_r
    v_{t,r} k_{t,r}^T`` and ``y_{t,r} = (s_t q_{t,r} + D v_{t,r}) silu(MIMO_Z_r Z_t)``, where
    v_{t,r} is ``MIMO_V_r V_t``, and l, q and k are as in ``mamba3_siso_combined``.

    Parameters
    ----------
    Q, K : Tensor, (batch, seqlen, mimo_rank, nheads_qk, headdim_qk)
        nheads_qk is a divisor of nheads, headdim_qk is even.
    V : Tensor, (batch, seqlen, nheads, headdim_v)
        Values.
    ADT, DT : Tensor, (batch, nheads, seqlen)
        Log decays and time steps.
    Trap : Tensor, (batch, nheads, seqlen)
        Its sigmoid is the weight of a token's own keys, beside those of the one before.
    Q_bias, K_bias : Tensor, (nheads, mimo_rank, headdim_qk)
        Added to queries and keys.
    MIMO_V, MIMO_Z, MIMO_Out : Tensor, (nheads, mimo_rank, headdim_v)
        Multiply V, Z, and the results before their sum over the ranks.  The last two may be None.
    Angles : Tensor, (batch, seqlen, nheads, headdim_angles)
        Angle i rotates channels i and i + headdim_qk / 2; the others stay.
    D : Tensor, (nheads,), or None
        Multiplies V.
    Z : Tensor, of the shape of V, or None
        The gate.
    chunk_size, rotary_dim_divisor : int
        Ignored: the first tunes GPU kernels, the second is known from the number of angles.
    dtype : torch.dtype
        That of the result.
    return_state : bool
        Also return what follows the last token of each sequence.
    cu_seqlens : Tensor of int, (sequences + 1,), optional
        Bounds of sequences that are packed in a batch of one.
    fuse_pregate_headwise_rms_norm : bool
        Norm the results of each head and rank before the gate.
    outproj_norm_weight : Tensor, (nheads, headdim_v) or (nheads * headdim_v,), optional
        The weight of this norm.
    outproj_norm_eps : float
        Its eps.

    Returns
    -------
    out : Tensor, (batch, seqlen, nheads, headdim_v)
        (batch, seqlen, mimo_rank, nheads, headdim_v) if MIMO_Out is None.
    angles, states, keys, value : Tensor
        Only with ``return_state``: (sequences, nheads, headdim_angles), (sequences, nheads,
        headdim_v, headdim_qk), (sequences, mimo_rank, nheads, headdim_qk), (sequences, nheads,
        headdim_v).

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Notes
    -----
    Unlike in mamba_ssm, gradients flow through the states, and the value that is returned is the
    last of each sequence, also of packed ones.

    References
    ----------
    Lahoti et al., "Mamba-3: Improved Sequence Modeling using State Space Principles", 2026

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.tilelang.mamba3.mamba3_mimo import mamba3_mimo
    >>> q, v, one = torch.ones(1, 2, 2, 1, 2), torch.ones(1, 2, 1, 1), torch.ones(1, 1, 2)
    >>> bias, weight = torch.zeros(1, 2, 2), torch.ones(1, 2, 1)
    >>> mamba3_mimo(
    ...     q, q, v, 0 * one, one, 0 * one, bias, bias, weight, None, weight, 0 * v, None, None, 16,
    ...     2, torch.float32,
    ... ).flatten()
    tensor([ 4., 12.])
    """
    name = "mamba3_mimo"
    given = {
        "Q": Q, "K": K, "V": V, "ADT": ADT, "DT": DT, "Trap": Trap, "Q_bias": Q_bias,
        "K_bias": K_bias, "MIMO_V": MIMO_V, "MIMO_Z": MIMO_Z, "MIMO_Out": MIMO_Out,
        "Angles": Angles, "D": D, "Z": Z,
    }  # fmt: skip
    sizes = check_tokens(name, AXES, given, ("MIMO_Z", "MIMO_Out", "D", "Z"), cu_seqlens)
    z_weight, out_weight = (None if x is None else x.transpose(0, 1) for x in (MIMO_Z, MIMO_Out))
    rows, v = Rows(len(V), V.shape[1], cu_seqlens), V.to(work_dtype(V.dtype))
    y, after = whole(
        Q, K, v.unsqueeze(2) * MIMO_V.transpose(0, 1), ADT, DT, Trap, Q_bias, K_bias, Angles, D,
        None, rows, False,
    )  # fmt: skip
    if fuse_pregate_headwise_rms_norm:
        y = F.rms_norm(y, y.shape[-1:], eps=outproj_norm_eps)
        if outproj_norm_weight is not None:
            y = y * outproj_norm_weight.to(y.dtype).view(sizes["h"], sizes["p"])
    out = gate(y, Z, z_weight, out_weight).to(dtype).contiguous()
    if not return_state:
        return out
    value = rows.last(v.flatten(0, 1).transpose(0, 1)).to(V.dtype)
    return out, after.angles, after.s, after.k.to(K.dtype), value


AXES = {
    "Q": "btrgn", "K": "btrgn", "Q_bias": "hrn", "K_bias": "hrn", "MIMO_V": "hrp", "MIMO_Z": "hrp",
    "MIMO_Out": "hrp", "D": "h", "Z": "bthp",
}  # fmt: skip
