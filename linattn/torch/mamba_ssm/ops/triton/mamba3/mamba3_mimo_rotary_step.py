"""The rotation of a token's queries and keys in Mamba-3."""

from __future__ import annotations

import torch
from torch import Tensor

from ....._core.conversions import work_dtype
from ...._axes import check_letters
from ...._mamba3 import next_angles, rotated, to_halves, to_pairs

__all__ = ["apply_rotary_qk_inference_fwd"]


def apply_rotary_qk_inference_fwd(
    q: Tensor,
    k: Tensor,
    angle_state: Tensor,
    angle_proj: Tensor,
    dt: Tensor,
    bias_q: Tensor | None = None,
    bias_k: Tensor | None = None,
    inplace: bool = False,
    conjugate: bool = False,
    rotate_pairwise: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the time step's angles to a state, and rotate a token's queries and keys by the sum.

    Parameters
    ----------
    q, k : Tensor, (batch, mimo_rank, nheads, headdim_qk)
        The token.
    angle_state, angle_proj : Tensor, (batch, nheads, headdim_angles)
        The sum of ``pi tanh(angle_proj) dt`` so far, and this token's term of it.
    dt : Tensor, (batch, nheads)
        The time step.
    bias_q, bias_k : Tensor, (mimo_rank, nheads, headdim_qk), optional
        Added to q and k before the rotation.
    inplace : bool
        Write the results to q, k and angle_state.
    conjugate : bool
        Rotate the other way round.
    rotate_pairwise : bool
        Angle i rotates channels 2 i and 2 i + 1, or else i and i + headdim_qk / 2.

    Returns
    -------
    q, k, angle_state : Tensor
        Of the shapes and dtypes of those given; angles are at least 0 and less than 2 pi.

    Raises
    ------
    TypeError
        If an operand is not a tensor.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step import (
    ...     apply_rotary_qk_inference_fwd,
    ... )
    >>> q, angle = torch.tensor([[[[1.0, 0.0]]]]), torch.zeros(1, 1, 1)
    >>> quarter = torch.tensor([[0.5]]), torch.full((1, 1, 1), 9.0)  # its tanh is 1
    >>> turned, _, angle = apply_rotary_qk_inference_fwd(q, q, angle, quarter[1], quarter[0])
    >>> turned.abs().round(), angle
    (tensor([[[[0., 1.]]]]), tensor([[[1.5708]]]))
    """
    given = {
        "q": q, "k": k, "angle_state": angle_state, "angle_proj": angle_proj, "dt": dt,
        "bias_q": bias_q, "bias_k": bias_k,
    }  # fmt: skip
    check_letters("apply_rotary_qk_inference_fwd", AXES, given, ("bias_q", "bias_k"))
    work = work_dtype(q.dtype)
    angles = next_angles(angle_state.to(work), angle_proj.to(work), dt.to(work))
    turn = torch.complex(angles.cos(), -angles.sin() if conjugate else angles.sin()).unsqueeze(1)
    results = []
    for x, bias in ((q, bias_q), (k, bias_k)):
        y = x.to(work) + (0 if bias is None else bias.to(work))
        y = rotated(y, turn) if rotate_pairwise else to_halves(rotated(to_pairs(y), turn))
        results.append(x.copy_(y) if inplace else y.to(x.dtype))
    angles = angle_state.copy_(angles) if inplace else angles.to(angle_state.dtype)
    return results[0], results[1], angles


AXES = {
    "q": "brhn", "k": "brhn", "angle_state": "bhs", "angle_proj": "bhs", "dt": "bh",
    "bias_q": "rhn", "bias_k": "rhn",
}  # fmt: skip
