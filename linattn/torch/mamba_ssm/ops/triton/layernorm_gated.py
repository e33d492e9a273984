"""Norms with a gate, over groups of a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...._core.conversions import work_dtype
from ....causal_conv1d._checks import check_given
from ....fla._layout import check_shape, check_tensor

__all__ = ["LayerNorm", "RMSNorm", "layernorm_fn", "rmsnorm_fn"]


def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Tensor:
    """Layer norm, or root mean square norm, with a gate.

    ``norm(x) silu(z)`` if norm_before_gate, else ``norm(x silu(z))``.

    Parameters
    ----------
    x : Tensor, (..., dim)
        Rows.
    weight, bias : Tensor, (dim,)
        Of the norm; bias may be None.
    z : Tensor, of the shape of x, optional
        The gate.
    eps : float
        Added to the variance or the mean square.
    group_size : int, optional
        Norm each group of so many numbers by itself, a divisor of dim; dim by default.
    norm_before_gate : bool
        Whether the gate follows the norm.
    is_rms_norm : bool
        Neither subtract the mean.

    Returns
    -------
    Tensor, of the shape and dtype of x

    Raises
    ------
    TypeError
        If an operand is not a tensor.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.layernorm_gated import layernorm_fn
    >>> layernorm_fn(torch.tensor([1.0, 3.0]), torch.ones(2), None)
    tensor([-1.0000,  1.0000])
    """
    _check("layernorm_fn", x, weight, bias, z, group_size)
    return _norm(x, weight, bias, z, eps, group_size, norm_before_gate, is_rms_norm)


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Tensor:
    """Root mean square norm with a gate: `layernorm_fn` with ``is_rms_norm``.

    Parameters
    ----------
    x, weight, bias, z, eps, group_size, norm_before_gate
        As in `layernorm_fn`.

    Returns
    -------
    Tensor, of the shape and dtype of x

    Raises
    ------
    TypeError, ValueError
        As `layernorm_fn`.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    >>> rmsnorm_fn(torch.tensor([1.0, 7.0]), torch.ones(2), None)
    tensor([0.2000, 1.4000])
    """
    _check("rmsnorm_fn", x, weight, bias, z, group_size)
    return _norm(x, weight, bias, z, eps, group_size, norm_before_gate, True)


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, eps: float,
    group_size: int | None, norm_before_gate: bool, is_rms_norm: bool,
) -> Tensor:  # fmt: skip
    work = work_dtype(x.dtype)
    y, gate = x.to(work), None if z is None else F.silu(z.to(work))
    if gate is not None and not norm_before_gate:
        y = y * gate
    grouped = y.unflatten(-1, (-1, group_size)) if group_size is not None else y
    size = grouped.shape[-1:]
    norm = F.rms_norm if is_rms_norm else F.layer_norm
    y = norm(grouped, size, eps=eps).view(x.shape) * weight.to(work)
    y = y if bias is None else y + bias.to(work)
    if gate is not None and norm_before_gate:
        y = y * gate
    return y.to(x.dtype)


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
    _check("rms_norm_ref", x, weight, bias, z, group_size)
    work = work_dtype(x.dtype) if upcast else x.dtype
    gate = torch.ones((), dtype=work) if z is None else F.silu(z.to(work))
    y = x.to(work) if norm_before_gate else x.to(work) * gate
    groups = y.unflatten(-1, (-1, group_size or x.shape[-1]))
    y = (groups / (groups.square().mean(-1, keepdim=True) + eps).sqrt()).flatten(-2) * weight
    y = y if bias is None else y + bias
    return (y * gate if norm_before_gate else y).to(x.dtype)


def _check(name: str, x: Any, weight: Any, bias: Any, z: Any, group_size: int | None) -> None:
    check_tensor(name, "x", x)
    dim = x.shape[-1]
    check_shape(name, "weight", weight, (dim,), "(dim,)")
    check_given(name, (dim,), "(dim,)", bias=bias)
    check_given(name, x.shape, "the shape of x", z=z)
    if group_size is not None and (group_size < 1 or dim % group_size):
        raise ValueError(f"{name}: group_size is {group_size}; expected a divisor of {dim}")


class LayerNorm(nn.Module):
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

    is_rms_norm = False
    bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        bias = None if self.is_rms_norm else nn.Parameter(torch.empty_like(self.weight))
        self.register_parameter("bias", bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """``norm(x) silu(z)`` if norm_before_gate, else ``norm(x silu(z))``."""
        return layernorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate,
            self.is_rms_norm,
        )  # fmt: skip


class RMSNorm(LayerNorm):
    """`rmsnorm_fn` as a layer.

    Parameters
    ----------
    hidden_size, eps, group_size, norm_before_gate, device, dtype
        As in `LayerNorm`.
    """

    is_rms_norm = True
