"""A layer of mamba_ssm's language models: norm, mixer, and perhaps norm and MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.triton.layer_norm import RMSNorm, layer_norm_fn

__all__ = ["Block"]


class Block(nn.Module):
    """Adds its input to the residual, norms the sum, and mixes it.

    Parameters
    ----------
    dim : int
        The width of a token.
    mixer_cls, mlp_cls, norm_cls : callable
        Make the mixer, the MLP and the norms from dim; ``nn.Identity`` is no MLP.
    fused_add_norm : bool
        Add in float32 before the norm, rather than in the dtype of the tokens.
    residual_in_fp32 : bool
        Keep the residual in float32.
    """

    layer_idx: int | None

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[[int], nn.Module],
        mlp_cls: Callable[[int], nn.Module],
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
    ) -> None:
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.norm, self.mixer = norm_cls(dim), mixer_cls(dim)
        self.mlp = None
        if mlp_cls is not nn.Identity:
            self.norm2, self.mlp = norm_cls(dim), mlp_cls(dim)

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None = None, inference_params: Any = None,
        **mixer_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The result of the mixer, or of the MLP, and the residual that it is to be added to."""
        hidden_states, residual = self._add_norm(self.norm, hidden_states, residual)
        hidden_states = self.mixer(hidden_states, inference_params=inference_params, **mixer_kwargs)
        if self.mlp is not None:
            hidden_states, residual = self._add_norm(self.norm2, hidden_states, residual)
            hidden_states = self.mlp(hidden_states)
        return hidden_states, residual

    def _add_norm(self, norm: Any, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return add_norm(norm, x, residual, self.fused_add_norm, self.residual_in_fp32)

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """The states of the mixer before the first token."""
        mixer: Any = self.mixer
        return mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


def add_norm(
    norm: Any, x: Tensor, residual: Tensor | None, fused: bool, residual_in_fp32: bool
) -> tuple[Tensor, Tensor]:
    """The norm of ``x + residual``, and this sum."""
    if fused:
        y, total = layer_norm_fn(
            x, norm.weight, norm.bias, residual, eps=norm.eps, prenorm=True,
            residual_in_fp32=residual_in_fp32, is_rms_norm=isinstance(norm, RMSNorm),
        )  # fmt: skip
        return y, total
    total = x if residual is None else x + residual
    y = norm(total.to(norm.weight.dtype))
    return y, total.float() if residual_in_fp32 else total
