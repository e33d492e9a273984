"""One token of Mamba-3 with writes of rank one (SISO)."""

from __future__ import annotations

from torch import Tensor

from .mamba3_siso_combined import mamba3_siso_combined

__all__ = ["mamba3_siso_step"]


def mamba3_siso_step(
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
) -> tuple[Tensor, list[Tensor]]:
    """``mamba3_siso_combined`` of a single token.

    Parameters
    ----------
    Q, K : Tensor, (batch, nheads_qk, headdim_qk)
        nheads_qk is a divisor of nheads, headdim_qk is even.
    V : Tensor, (batch, nheads, headdim_v)
        Values.
    ADT, DT, Trap : Tensor, (batch, nheads)
        Log decays, time steps, and the mixture of keys before its sigmoid.
    Q_bias, K_bias : Tensor, (nheads, headdim_qk)
        Added to queries and keys.
    Angles : Tensor, (batch, nheads, headdim_angles)
        Angle i rotates channels 2 i and 2 i + 1.
    D : Tensor, (nheads,), optional
        Multiplies V.
    Z : Tensor, of the shape of V, optional
        The gate.
    Input_States : tuple of Tensors, optional
        As in ``mamba3_siso_combined``; None is before the first token.

    Returns
    -------
    out : Tensor, (batch, nheads, headdim_v)
        Of the dtype of V.
    states : list of Tensors
        The states after the token, which are new tensors.

    Raises
    ------
    TypeError, ValueError
        As ``mamba3_siso_combined``.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.mamba3.mamba3_siso_step import mamba3_siso_step
    >>> q, v, one = torch.ones(1, 1, 2), torch.ones(1, 1, 1), torch.ones(1, 1)
    >>> operands = q, q, v, 0 * one, one, 0 * one, 0 * q[0], 0 * q[0], 0 * v
    >>> out, states = mamba3_siso_step(*operands)
    >>> mamba3_siso_step(*operands, Input_States=states)[0]
    tensor([[[3.]]])
    """
    out, *states = mamba3_siso_combined(
        Q.unsqueeze(1), K.unsqueeze(1), V.unsqueeze(1), ADT.unsqueeze(-1), DT.unsqueeze(-1),
        Trap.unsqueeze(-1), Q_bias, K_bias, Angles.unsqueeze(1), D,
        None if Z is None else Z.unsqueeze(1), Input_States, return_final_states=True,
    )  # fmt: skip
    return out.squeeze(1), states
