"""The language models of mamba_ssm."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..modules.block import Block, add_norm
from ..modules.mamba2 import Mamba2
from ..modules.mamba3 import Mamba3
from ..modules.mamba_simple import Mamba
from ..modules.mlp import GatedMLP
from ..ops.triton.layer_norm import RMSNorm
from ..utils.generation import GenerationMixin
from ..utils.hf import load_config_hf, load_state_dict_hf
from .config_mamba import MambaConfig

__all__ = ["MambaLMHeadModel", "MixerModel", "create_block"]

MIXERS = {"Mamba1": Mamba, "Mamba2": Mamba2, "Mamba3": Mamba3}


def create_block(
    d_model: int,
    d_intermediate: int,
    ssm_cfg: dict[str, Any] | None = None,
    attn_layer_idx: list[int] | None = None,
    attn_cfg: dict[str, Any] | None = None,
    norm_epsilon: float = 1e-5,
    rms_norm: bool = False,
    residual_in_fp32: bool = False,
    fused_add_norm: bool = False,
    layer_idx: int | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> Block:
    """A layer of a language model.

    Parameters
    ----------
    d_model, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg
        As in ``MambaConfig``.
    norm_epsilon : float
        The eps of the norms.
    rms_norm, residual_in_fp32, fused_add_norm
        As in ``MambaConfig``.
    layer_idx : int, optional
        The number of the layer.
    device, dtype
        Of the parameters.

    Returns
    -------
    Block

    Raises
    ------
    NotImplementedError
        If the layer is one of softmax attention.
    ValueError
        If ``ssm_cfg["layer"]`` is unknown.
    """
    if layer_idx in (attn_layer_idx or ()):
        raise NotImplementedError(
            f"create_block: attn_layer_idx has {layer_idx}; expected none, as linattn's mamba_ssm "
            "has no layers of softmax attention"
        )
    factory = {"device": device, "dtype": dtype}
    options = copy.deepcopy(ssm_cfg or {})
    kind = options.pop("layer", "Mamba1")
    if kind not in MIXERS:
        raise ValueError(f"create_block: ssm_cfg['layer'] is {kind!r}; expected one of {[*MIXERS]}")
    mixer: Any = MIXERS[kind]
    mlp: Any = nn.Identity
    if d_intermediate:
        mlp = partial(GatedMLP, hidden_features=d_intermediate, out_features=d_model, **factory)
    norm: Any = RMSNorm if rms_norm else nn.LayerNorm
    block = Block(
        d_model, partial(mixer, layer_idx=layer_idx, **options, **factory), mlp,
        partial(norm, eps=norm_epsilon, **factory), fused_add_norm, residual_in_fp32,
    )  # fmt: skip
    block.layer_idx = layer_idx
    return block


def _init_weights(
    module: nn.Module,
    n_layer: int,
    initializer_range: float = 0.02,
    rescale_prenorm_residual: bool = True,
    n_residuals_per_layer: int = 1,
) -> None:
    """Draw embeddings, zero biases, and draw what is added to the residual by their number."""
    if isinstance(module, nn.Linear):
        if module.bias is not None and not getattr(module.bias, "_no_reinit", False):
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if not rescale_prenorm_residual:
        return
    for name, weight in module.named_parameters():
        if name in ("out_proj.weight", "fc2.weight"):
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
            with torch.no_grad():
                weight.div_(math.sqrt(n_residuals_per_layer * n_layer))


class MixerModel(nn.Module):
    """Embedding, layers and the last norm.

    Parameters
    ----------
    d_model, n_layer, d_intermediate, vocab_size, ssm_cfg, attn_layer_idx, attn_cfg
        As in ``MambaConfig``.
    norm_epsilon : float
        The eps of the norms.
    rms_norm
        As in ``MambaConfig``.
    initializer_cfg : dict, optional
        Arguments of the initialisation: initializer_range, rescale_prenorm_residual,
        n_residuals_per_layer.
    fused_add_norm, residual_in_fp32
        As in ``MambaConfig``.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        d_intermediate: int,
        vocab_size: int,
        ssm_cfg: dict[str, Any] | None = None,
        attn_layer_idx: list[int] | None = None,
        attn_cfg: dict[str, Any] | None = None,
        norm_epsilon: float = 1e-5,
        rms_norm: bool = False,
        initializer_cfg: dict[str, Any] | None = None,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.embedding = nn.Embedding(vocab_size, d_model, **factory)
        self.layers = nn.ModuleList(
            create_block(
                d_model, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg, norm_epsilon, rms_norm,
                residual_in_fp32, fused_add_norm, i, **factory,
            )
            for i in range(n_layer)
        )  # fmt: skip
        norm: Any = RMSNorm if rms_norm else nn.LayerNorm
        self.norm_f = norm(d_model, eps=norm_epsilon, **factory)
        options = {"n_residuals_per_layer": 2 if d_intermediate else 1} | (initializer_cfg or {})
        self.apply(partial(_init_weights, n_layer=n_layer, **options))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        """The states of all layers before the first token."""
        layers: Any = self.layers
        return {
            i: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
            for i, layer in enumerate(layers)
        }

    def forward(
        self, input_ids: Tensor, inference_params: Any = None, **mixer_kwargs: Any
    ) -> Tensor:
        """The input of the head, (batch, seqlen, d_model), for tokens (batch, seqlen)."""
        x, residual = self.embedding(input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, inference_params=inference_params, **mixer_kwargs)
        return add_norm(self.norm_f, x, residual, self.fused_add_norm, self.residual_in_fp32)[0]


class CausalLMOutput(NamedTuple):
    """The result of a `MambaLMHeadModel`."""

    logits: Tensor


class MambaLMHeadModel(nn.Module, GenerationMixin):
    """A language model of the layers of Mamba, Mamba-2 or Mamba-3.

    Parameters
    ----------
    config : MambaConfig
        Its sizes and layers.
    initializer_cfg : dict, optional
        As in `MixerModel`.
    device, dtype
        Of the parameters.

    Raises
    ------
    NotImplementedError
        If config.attn_layer_idx is not empty.
    ValueError
        If config.ssm_cfg["layer"] is unknown.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm import MambaLMHeadModel
    >>> from linattn.torch.mamba_ssm.models.config_mamba import MambaConfig
    >>> model = MambaLMHeadModel(MambaConfig(d_model=16, n_layer=2, vocab_size=50))
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_length=8).shape
    torch.Size([1, 8])
    """

    def __init__(
        self,
        config: MambaConfig,
        initializer_cfg: dict[str, Any] | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        factory = {"device": device, "dtype": dtype}
        multiple = config.pad_vocab_size_multiple
        vocab_size = -(-config.vocab_size // multiple) * multiple
        self.backbone = MixerModel(
            config.d_model, config.n_layer, config.d_intermediate, vocab_size, config.ssm_cfg,
            config.attn_layer_idx, config.attn_cfg, rms_norm=config.rms_norm,
            initializer_cfg=initializer_cfg, fused_add_norm=config.fused_add_norm,
            residual_in_fp32=config.residual_in_fp32, **factory,
        )  # fmt: skip
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=False, **factory)
        self.apply(partial(_init_weights, n_layer=config.n_layer, **(initializer_cfg or {})))
        self.tie_weights()

    def tie_weights(self) -> None:
        """Give the head the weights of the embedding, if the configuration says so."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        """The states of all layers before the first token."""
        return self.backbone.allocate_inference_cache(batch_size, max_seqlen, dtype, **kwargs)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, inference_params: Any = None,
        num_last_tokens: int = 0, **mixer_kwargs: Any,
    ) -> CausalLMOutput:  # fmt: skip
        """The logits (batch, seqlen, vocab_size), or those of the last tokens.

        ``position_ids`` is ignored.
        """
        x = self.backbone(input_ids, inference_params=inference_params, **mixer_kwargs)
        if num_last_tokens > 0:
            x = x[:, -num_last_tokens:]
        return CausalLMOutput(self.lm_head(x))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name: str, device: Any = None, dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> Self:  # fmt: skip
        """The model saved in a folder, or in a repository of the Hugging Face hub."""
        config = MambaConfig(**load_config_hf(pretrained_model_name))
        model = cls(config, device=device, dtype=dtype, **kwargs)
        model.load_state_dict(load_state_dict_hf(pretrained_model_name, device, dtype))
        return model

    def save_pretrained(self, save_directory: str) -> None:
        """Save parameters and configuration in a folder."""
        os.makedirs(save_directory, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(save_directory, "pytorch_model.bin"))
        with open(os.path.join(save_directory, "config.json"), "w") as file:
            json.dump(dataclasses.asdict(self.config), file, indent=4)
