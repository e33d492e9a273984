"""Norms with a gate, over groups of a row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...._core.conversions import work_dtype
from ....fla.modules._other_norms import LayerNormGated, check_rows, layernorm_fn, rmsnorm_fn

__all__ = ["LayerNorm", "RMSNorm", "layernorm_fn", "rmsnorm_fn"]


def rms_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    upcast: bool = True,
) -> Tensor:
    """`rmsnorm_fn` by its equation, for tests; in the dtype of x without ``upcast``."""
    check_rows("rms_norm_ref", x, weight, bias, z, group_size)
    work = work_dtype(x.dtype) if upcast else x.dtype
    gate = torch.ones((), dtype=work) if z is None else F.silu(z.to(work))
    y = x.to(work) if norm_before_gate else x.to(work) * gate
    groups = y.unflatten(-1, (-1, group_size or x.shape[-1]))
    y = (groups / (groups.square().mean(-1, keepdim=True) + eps).sqrt()).flatten(-2) * weight
    y = y if bias is None else y + bias
    return (y * gate if norm_before_gate else y).to(x.dtype)


class LayerNorm(LayerNormGated):
    """`layernorm_fn` as a layer.

    Parameters
    ----------
    hidden_size : int
        The length of a row.
    eps, group_size, norm_before_gate
        As in `layernorm_fn`.
    device, dtype
        Of the weight and the bias.
    """


class RMSNorm(LayerNorm):
    """`rmsnorm_fn` as a layer.

    Parameters
    ----------
    hidden_size, eps, group_size, norm_before_gate, device, dtype
        As in `LayerNorm`.
    """

    is_rms_norm = True
