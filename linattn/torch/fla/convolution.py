"""The short convolution: causal_conv1d, causal_conv1d_update, ShortConvolution."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.checks import wrong_shape
from .._core.conv_update import moved_on
from .._core.conversions import promotion
from ..operators import causal_conv1d as _conv
from ..operators import causal_conv1d_step
from ._docs import documented
from ._keywords import refuse

__all__ = ["ShortConvolution", "causal_conv1d", "causal_conv1d_update"]

BACKENDS = ("triton", "cuda", "mix")  #: fla's GPU kernels, all the same here


@documented("causal_conv1d", {"initial_state": "Tensor, [N, D, W], optional"})
def causal_conv1d(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, initial_state: Tensor | None = None,
    output_final_state: bool | None = False, activation: str | None = None,
    backend: str | None = "triton", cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None, chunk_indices: Tensor | None = None,
    cp_context: Any = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The convolution of x [B, T, D] with weight [D, W], plus ``residual``.

    States are the last W inputs, [N, D, W]; the oldest is not used.

    Returns
    -------
    y : Tensor, [B, T, D]
    final_state : Tensor, [N, D, W], or None
        The last W inputs; None without ``output_final_state``.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x, weight = torch.tensor([[[1.0], [2.0], [4.0]]]), torch.tensor([[0.5, 1.0]])
    >>> y, state = fla.causal_conv1d(x, weight, output_final_state=True)
    >>> y.flatten(), state
    (tensor([1.0000, 2.5000, 5.0000]), tensor([[[2., 4.]]]))
    """
    name = "causal_conv1d"
    refuse(name, kwargs | {"cp_context": cp_context})
    if weight is None:
        raise ValueError(f"{name}: weight is None; expected [D, W]")
    if cu_seqlens is not None and not isinstance(cu_seqlens, Tensor):
        cu_seqlens = torch.as_tensor(cu_seqlens)
    if backend not in BACKENDS:
        raise ValueError(f"{name}: backend is {backend!r}; expected one of {BACKENDS}")
    if x.ndim != 3 or (cu_seqlens is not None and x.shape[0] != 1):
        raise wrong_shape(name, "x", x, "[B, T, D], B = 1 with cu_seqlens")
    start = None
    if initial_state is not None:
        start = initial_state[..., 1:]
        start = start if cu_seqlens is None else start.unsqueeze(0)
    y = _conv(
        x, weight, bias, activation=_activation(name, activation), cu_seqlens=cu_seqlens,
        initial_state=start,
    )  # fmt: skip
    y = y.to(promotion([x.dtype]))  # regardless of the weight's
    y = y if residual is None else y + residual
    if not output_final_state:
        return y, None
    return y, _last(x, initial_state, weight.shape[-1], cu_seqlens)


@documented("causal_conv1d_step", {"x": "Tensor, [N, D], [N, 1, D] or [1, N, D]"})
def causal_conv1d_update(
    x: Tensor, cache: Tensor, residual: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, activation: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The convolution of one token per sequence, which updates the cache in place.

    Returns
    -------
    y : Tensor
        Of the shape of x.
    cache : Tensor, [N, D, W]

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> cache, weight = torch.tensor([[[2.0, 4.0]]]), torch.tensor([[0.5, 1.0]])
    >>> fla.causal_conv1d_update(torch.tensor([[8.0]]), cache, weight=weight)
    (tensor([[10.]]), tensor([[[4., 8.]]]))
    """
    name = "causal_conv1d_update"
    if weight is None:
        raise ValueError(f"{name}: weight is None; expected [D, W]")
    n, d = cache.shape[0], cache.shape[1]
    if x.numel() != n * d:
        raise wrong_shape(
            name, "x", x, f"one token of {d} channels for each of the {n} sequences in cache"
        )
    token, activation = x.reshape(n, d), _activation(name, activation)
    y = moved_on(token, cache, weight, bias, activation)
    if y is NotImplemented:
        y, _ = causal_conv1d_step(token, weight, cache[..., 1:], bias, activation=activation)
        with torch.no_grad():
            cache.copy_(torch.cat([cache[..., 1:], token.unsqueeze(-1).to(cache.dtype)], -1))
    y = y.to(promotion([x.dtype])).reshape(x.shape)
    return y if residual is None else y + residual, cache


class ShortConvolution(nn.Conv1d):
    """The short convolution as a layer: x [B, T, D], weight [D, 1, W], states [N, D, W].

    Parameters
    ----------
    hidden_size, kernel_size : int
        D and W.
    bias : bool, default False
        Whether channels have a bias.
    activation : {'silu', 'swish', None}, default 'silu'
        Applied to the sum.
    backend : str, optional
        Tunes GPU kernels; ignored here.
    device, dtype : optional
        Of the parameters.
    use_fast_conv1d : bool, optional
        The former name of backend; ignored here, with a DeprecationWarning.
    """

    def __init__(
        self, hidden_size: int, kernel_size: int, bias: bool = False,
        activation: str | None = "silu", backend: str | None = "triton", device: Any = None,
        dtype: torch.dtype | None = None, *, use_fast_conv1d: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            hidden_size, hidden_size, kernel_size, padding=kernel_size - 1, groups=hidden_size,
            bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        _activation("ShortConvolution", activation)
        if use_fast_conv1d is not None:
            warnings.warn(
                "use_fast_conv1d is deprecated and ignored", DeprecationWarning, stacklevel=2
            )
        self.hidden_size, self.activation, self.backend = hidden_size, activation, backend

    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor | None = None, mask: Tensor | None = None,
        cache: Tensor | None = None, output_final_state: bool = False,
        cu_seqlens: Tensor | None = None, chunk_indices: Tensor | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """y, and the last W inputs with ``output_final_state``.

        Without autograd, one token per sequence updates the cache in place.
        """
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("ShortConvolution: mask and cu_seqlens are both given")
            x = x * mask.unsqueeze(-1)
        sequences = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        one = x.shape[0] * x.shape[1] == sequences and (
            cu_seqlens is None or bool((cu_seqlens.diff() == 1).all())
        )
        weight = self.weight.squeeze(1)
        if one and cache is not None and not torch.is_grad_enabled():
            y, cache = causal_conv1d_update(x, cache, residual, weight, self.bias, self.activation)
            return y, cache if output_final_state else None
        return causal_conv1d(
            x, weight, self.bias, residual, cache, output_final_state, self.activation,
            cu_seqlens=cu_seqlens, chunk_indices=chunk_indices, **kwargs,
        )  # fmt: skip

    @property
    def state_size(self) -> int:
        """The size of the state of one sequence."""
        return self.hidden_size * self.kernel_size[0]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


def _activation(name: str, activation: str | None) -> str | None:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"{name}: activation is {activation!r}; expected 'silu', 'swish' or None")
    return None if activation is None else "silu"


def _last(x: Tensor, start: Tensor | None, w: int, cu_seqlens: Tensor | None) -> Tensor:
    """The last w inputs of each sequence, [N, D, w]; those before its first token are in start."""
    cuts = torch.tensor([0, x.shape[1]], device=x.device) if cu_seqlens is None else cu_seqlens
    begin, end = cuts[:-1], cuts[1:]
    at = end[:, None] - w + torch.arange(w, device=x.device)  # (N or 1, w)
    inside = at >= begin[:, None]
    if cu_seqlens is None:
        rows = x[:, at[0].clamp(min=0)] if x.shape[1] else x.new_zeros(x.shape[0], w, x.shape[2])
    else:
        rows = x[0, at.clamp(min=0)] if x.shape[1] else x.new_zeros(len(at), w, x.shape[2])
    last = torch.where(inside[..., None], rows, 0)
    if start is not None:
        moved = (at - begin[:, None] + w).clamp(max=w - 1)  # the position in start
        before = torch.gather(start, 2, moved[:, None].expand(start.shape).long())
        last = torch.where(inside[..., None], last, before.transpose(1, 2).to(x.dtype))
    return last.transpose(1, 2).contiguous()
