"""``fla.modules.layernorm_gated``, the norms of Mamba-2, and ``fla.modules.l2norm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._layout import check_given, check_shape, check_tensor
from ._activations import wide
from ._layernorm import Affine
from ._norms import l2_norm, normalized

__all__ = [
    "L2Norm", "LayerNormGated", "RMSNormGated", "l2_norm", "l2norm", "layernorm_fn", "rmsnorm_fn",
]  # fmt: skip

l2norm = l2_norm


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
    name = "layernorm_fn"
    return _gated(name, x, weight, bias, z, eps, group_size, norm_before_gate, is_rms_norm)


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
    return _gated("rmsnorm_fn", x, weight, bias, z, eps, group_size, norm_before_gate, True)


def _gated(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, eps: float,
    group_size: int | None, norm_before_gate: bool, is_rms_norm: bool,
) -> Tensor:  # fmt: skip
    check_rows(name, x, weight, bias, z, group_size)
    y, gate = wide(x), None if z is None else F.silu(wide(z))
    if gate is not None and not norm_before_gate:
        y = y * gate
    groups = 1 if group_size is None else x.shape[-1] // group_size
    y = normalized(y, weight, bias, eps, is_rms_norm, groups)
    if gate is not None and norm_before_gate:
        y = y * gate
    return y.to(x.dtype)


def check_rows(name: str, x: Any, weight: Any, bias: Any, z: Any, group_size: int | None) -> None:
    check_tensor(name, "x", x)
    dim = x.shape[-1]
    check_shape(name, "weight", weight, (dim,), "(dim,)")
    check_given(name, (dim,), "(dim,)", bias=bias)
    check_given(name, x.shape, "the shape of x", z=z)
    if group_size is not None and (group_size < 1 or dim % group_size):
        raise ValueError(f"{name}: group_size is {group_size}; expected a divisor of {dim}")


class LayerNormGated(Affine):
    """The layer norm of groups of channels, with a gate silu(z) after or before it."""

    weight: nn.Parameter

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None,
        norm_before_gate: bool = True, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, True, not self.is_rms_norm, eps, device, dtype)
        self.group_size, self.norm_before_gate = group_size, norm_before_gate

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        return layernorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate,
            self.is_rms_norm,
        )  # fmt: skip


class RMSNormGated(LayerNormGated):
    """The same over root mean squares."""

    is_rms_norm = True

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None,
        norm_before_gate: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hidden_size, eps, group_size, norm_before_gate, device, dtype)


class L2Norm(nn.Module):
    """x over its length."""

    def __init__(self, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps, self.output_dtype = eps, output_dtype

    def forward(self, x: Tensor) -> Tensor:
        return l2_norm(x, self.eps, self.output_dtype)
