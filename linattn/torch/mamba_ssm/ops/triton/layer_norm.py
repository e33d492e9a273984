"""Dropout, residual connection and norm in one function."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...._core.conversions import work_dtype
from ....fla._layout import check_given, check_shape, check_tensor

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
    total, kept = _summed(x, residual, x1, rowscale, dropout_p, (None, None), work)
    norm = F.rms_norm if is_rms_norm else F.layer_norm
    y = norm(total, total.shape[-1:], eps=eps)
    more: list[Tensor | None] = []
    if prenorm:
        kind = torch.float32 if residual_in_fp32 else x.dtype
        more.append(total.to(kind if residual is None else residual.dtype))
    if return_dropout_mask:
        more += kept
    return _outputs(y, x.dtype, (weight, bias), (weight1, bias1), more)


def _summed(
    x: Tensor, residual: Tensor | None, x1: Tensor | None, rowscale: Tensor | None, p: float,
    kept: tuple[Tensor | None, Tensor | None], work: torch.dtype,
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:  # fmt: skip
    """What is normed, and which numbers of x and x1 are kept: those given, or drawn here."""
    total = x.to(work) if rowscale is None else x.to(work) * rowscale.to(work)[..., None]
    total, first = _dropout(total, p, kept[0])
    second = None
    if x1 is not None:
        added, second = _dropout(x1.to(work), p, kept[1])
        total = total + added
    return total if residual is None else (total + residual).to(work), (first, second)


def _dropout(x: Tensor, p: float, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x with a share p of its numbers at 0, and which are kept."""
    if p == 0.0:
        return x, None
    kept = torch.rand_like(x) > p if kept is None else kept
    return torch.where(kept, x / (1 - p), 0), kept


def _outputs(
    normed: Tensor, dtype: torch.dtype, first: tuple[Tensor, Tensor | None],
    second: tuple[Tensor | None, Tensor | None], more: list[Tensor | None],
) -> Any:  # fmt: skip
    """The normed rows with each weight and its bias, and more results."""
    results: list[Tensor | None] = []
    for weight, bias in (first, second):
        if weight is not None:
            y = normed * weight.to(normed.dtype)
            results.append((y if bias is None else y + bias.to(y.dtype)).to(dtype))
    results += more
    return results[0] if len(results) == 1 else tuple(results)


def _check(
    name: str, x: Any, weight: Any, bias: Any, residual: Any, x1: Any, weight1: Any, bias1: Any,
    rowscale: Any,
) -> None:  # fmt: skip
    check_tensor(name, "x", x)
    check_shape(name, "weight", weight, x.shape[-1:], "(dim,)")
    check_given(name, x.shape[-1:], "(dim,)", bias=bias, weight1=weight1, bias1=bias1)
    check_given(name, x.shape, "the shape of x", residual=residual, x1=x1)
    if rowscale is not None and x1 is not None:
        raise ValueError(f"{name}: rowscale and x1 are both given; expected one of them")
    check_given(name, x.shape[:-1], "a number for each row of x", rowscale=rowscale)


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
    _check("rms_norm_fn", x, weight, bias, residual, x1, weight1, bias1, rowscale)
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


def _reference(
    name: str,
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
    """`layer_norm_fn` or `rms_norm_fn` by its equation, for tests.

    It is given which numbers dropout keeps, and computes in the dtype of x without ``upcast``.
    """
    _check(name, x, weight, bias, residual, x1, weight1, bias1, rowscale)
    work = work_dtype(x.dtype) if upcast else x.dtype
    kept = dropout_mask, dropout_mask1
    total, _ = _summed(x, residual, x1, rowscale, dropout_p, kept, work)
    y = total if name == "rms_norm_ref" else total - total.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + eps).sqrt()
    return _outputs(y, x.dtype, (weight, bias), (weight1, bias1), [total] if prenorm else [])


layer_norm_ref = functools.partial(_reference, "layer_norm_ref")
rms_norm_ref = functools.partial(_reference, "rms_norm_ref")
layer_norm_ref.__doc__ = rms_norm_ref.__doc__ = _reference.__doc__


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
