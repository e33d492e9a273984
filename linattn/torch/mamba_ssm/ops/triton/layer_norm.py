"""Dropout, residual connection and norm in one function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...._core.conversions import work_dtype
from ....fla._layout import check_shape, check_tensor

__all__ = ["RMSNorm", "layer_norm_fn", "layer_norm_linear_fn", "rms_norm_fn"]


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """The norm of ``residual + dropout(rowscale x) + dropout(x1)``.

    Parameters
    ----------
    x : Tensor, (..., dim)
        Rows.
    weight, bias : Tensor, (dim,)
        Of the norm; bias may be None.
    residual, x1 : Tensor, of the shape of x, optional
        Added to x.
    weight1, bias1 : Tensor, (dim,), optional
        Those of a second output from the same norm.
    eps : float
        Added to the variance or the mean square.
    dropout_p : float
        The probability of dropout of x and x1.
    rowscale : Tensor, of the shape of x without its last axis, optional
        Multiplies rows of x; not with x1.
    prenorm : bool
        Also return the sum before the norm.
    residual_in_fp32 : bool
        This sum is float32 where there is no residual; otherwise it has the residual's dtype.
    is_rms_norm : bool
        Root mean square norm instead of layer norm.
    return_dropout_mask : bool
        Also return which numbers of x, and of x1, dropout keeps; None without dropout.

    Returns
    -------
    Tensor, or a tuple of tensors
        The output, of the dtype of x; the second one with weight1; the sum with prenorm; two
        masks with return_dropout_mask.

    Raises
    ------
    TypeError
        If an operand is not a tensor.
    ValueError
        If shapes or options do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.layer_norm import layer_norm_fn
    >>> x, residual = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])
    >>> layer_norm_fn(x, torch.ones(2), None, residual, prenorm=True)
    (tensor([-1.0000,  1.0000]), tensor([1., 3.]))
    """
    _check("layer_norm_fn", x, weight, bias, residual, x1, weight1, bias1, rowscale)
    work = work_dtype(x.dtype)
    total = x.to(work) if rowscale is None else x.to(work) * rowscale.to(work)[..., None]
    total, kept = _dropout(total, dropout_p)
    kept1 = None
    if x1 is not None:
        added, kept1 = _dropout(x1.to(work), dropout_p)
        total = total + added
    total = total if residual is None else total + residual.to(work)
    norm = F.rms_norm if is_rms_norm else F.layer_norm
    normed = norm(total, total.shape[-1:], eps=eps)
    results = [_scaled(normed, weight, bias).to(x.dtype)]
    if weight1 is not None:
        results.append(_scaled(normed, weight1, bias1).to(x.dtype))
    if prenorm:
        kind = torch.float32 if residual_in_fp32 else x.dtype
        results.append(total.to(kind if residual is None else residual.dtype))
    if return_dropout_mask:
        return (*results, kept, kept1)
    return results[0] if len(results) == 1 else tuple(results)


def _dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor | None]:
    """x with a share p of its numbers at 0, and which are kept."""
    if p == 0.0:
        return x, None
    kept = torch.rand_like(x) > p
    return torch.where(kept, x / (1 - p), 0), kept


def _scaled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x * weight.to(x.dtype)
    return y if bias is None else y + bias.to(x.dtype)


def _check(
    name: str, x: Any, weight: Any, bias: Any, residual: Any, x1: Any, weight1: Any, bias1: Any,
    rowscale: Any,
) -> None:  # fmt: skip
    check_tensor(name, "x", x)
    check_shape(name, "weight", weight, x.shape[-1:], "(dim,)")
    for argument, y in (("bias", bias), ("weight1", weight1), ("bias1", bias1)):
        if y is not None:
            check_shape(name, argument, y, x.shape[-1:], "(dim,)")
    for argument, y in (("residual", residual), ("x1", x1)):
        if y is not None:
            check_shape(name, argument, y, x.shape, "the shape of x")
    if rowscale is not None:
        if x1 is not None:
            raise ValueError(f"{name}: rowscale and x1 are both given; expected one of them")
        check_shape(name, "rowscale", rowscale, x.shape[:-1], "a number for each row of x")


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """`layer_norm_fn` with the root mean square norm.

    Parameters
    ----------
    x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale
        As in `layer_norm_fn`.
    prenorm, residual_in_fp32, return_dropout_mask
        As in `layer_norm_fn`.

    Returns
    -------
    Tensor, or a tuple of tensors
        As from `layer_norm_fn`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm_fn`.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.layer_norm import rms_norm_fn
    >>> rms_norm_fn(torch.tensor([1.0, 7.0]), torch.ones(2), None)
    tensor([0.2000, 1.4000])
    """
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm,
        residual_in_fp32, True, return_dropout_mask,
    )  # fmt: skip


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """A projection of the norm of ``residual + x``.

    Parameters
    ----------
    x : Tensor, (..., dim)
        Rows.
    norm_weight, norm_bias : Tensor, (dim,)
        Of the norm; norm_bias may be None.
    linear_weight, linear_bias : Tensor, (out, dim) and (out,)
        Of the projection; linear_bias may be None.
    residual, eps, prenorm, residual_in_fp32, is_rms_norm
        As in `layer_norm_fn`.

    Returns
    -------
    Tensor, (..., out), or a pair of it and the sum with prenorm

    Raises
    ------
    TypeError, ValueError
        As `layer_norm_fn`.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.layer_norm import layer_norm_linear_fn
    >>> weight = torch.tensor([[2.0, 4.0]])
    >>> layer_norm_linear_fn(torch.tensor([1.0, 3.0]), torch.ones(2), None, weight, None)
    tensor([2.0000])
    """
    y = layer_norm_fn(
        x, norm_weight, norm_bias, residual, eps=eps, prenorm=prenorm,
        residual_in_fp32=residual_in_fp32, is_rms_norm=is_rms_norm,
    )  # fmt: skip
    y, total = y if prenorm else (y, None)
    out = F.linear(y.to(linear_weight.dtype), linear_weight, linear_bias)
    return (out, total) if prenorm else out


def layer_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    dropout_mask: Tensor | None = None,
    dropout_mask1: Tensor | None = None,
    upcast: bool = False,
) -> Any:
    """`layer_norm_fn` by its equation, for tests.

    It is given which numbers dropout keeps, and computes in the dtype of x without ``upcast``.
    """
    total = _summed(
        "layer_norm_ref", x, weight, bias, residual, x1, weight1, bias1, dropout_p, rowscale,
        dropout_mask, dropout_mask1, upcast,
    )  # fmt: skip
    y = total - total.mean(-1, keepdim=True)
    return _outputs(x.dtype, y, total, weight, bias, weight1, bias1, eps, prenorm)


def rms_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    dropout_mask: Tensor | None = None,
    dropout_mask1: Tensor | None = None,
    upcast: bool = False,
) -> Any:
    """`rms_norm_fn` by its equation, for tests; the arguments of `layer_norm_ref`."""
    total = _summed(
        "rms_norm_ref", x, weight, bias, residual, x1, weight1, bias1, dropout_p, rowscale,
        dropout_mask, dropout_mask1, upcast,
    )  # fmt: skip
    return _outputs(x.dtype, total, total, weight, bias, weight1, bias1, eps, prenorm)


def _summed(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None,
    x1: Tensor | None, weight1: Tensor | None, bias1: Tensor | None, p: float,
    rowscale: Tensor | None, kept: Tensor | None, kept1: Tensor | None, upcast: bool,
) -> Tensor:  # fmt: skip
    """What is normed: x, x1 and the residual."""
    _check(name, x, weight, bias, residual, x1, weight1, bias1, rowscale)
    work = work_dtype(x.dtype) if upcast else x.dtype
    total = x.to(work) if rowscale is None else x.to(work) * rowscale.to(work)[..., None]
    total = _dropped(total, kept, p)
    total = total if x1 is None else total + _dropped(x1.to(work), kept1, p)
    return total if residual is None else (total + residual).to(work)


def _dropped(x: Tensor, kept: Tensor | None, p: float) -> Tensor:
    if p == 0.0:
        return x
    return _dropout(x, p)[0] if kept is None else torch.where(kept, x / (1 - p), 0)


def _outputs(
    dtype: torch.dtype, centred: Tensor, total: Tensor, weight: Tensor, bias: Tensor | None,
    weight1: Tensor | None, bias1: Tensor | None, eps: float, prenorm: bool,
) -> Any:  # fmt: skip
    """Numbers over their root mean square, with each weight; the sum with prenorm."""
    y = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    results = [_scaled(y, weight, bias).to(dtype)]
    if weight1 is not None:
        results.append(_scaled(y, weight1, bias1).to(dtype))
    if prenorm:
        results.append(total)
    return results[0] if len(results) == 1 else tuple(results)


class RMSNorm(nn.Module):
    """`rms_norm_fn` as a layer.

    Parameters
    ----------
    hidden_size : int
        The length of a row.
    eps : float
        Added to the mean square.
    dropout_p : float
        The probability of dropout of x in training.
    device, dtype
        Of the weight.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:  # fmt: skip
        """As `rms_norm_fn`."""
        p = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x, self.weight, None, residual, eps=self.eps, dropout_p=p, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
        )  # fmt: skip
