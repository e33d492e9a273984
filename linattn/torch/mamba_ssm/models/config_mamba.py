"""The configuration of mamba_ssm's language models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["MambaConfig"]


@dataclass
class MambaConfig:
    """The configuration of a ``MambaLMHeadModel``.

    Parameters
    ----------
    d_model : int
        The width of a token.
    d_intermediate : int
        The width of the MLP of each layer; 0 for none.
    n_layer, vocab_size : int
        The number of layers and the size of the vocabulary.
    ssm_cfg : dict
        Arguments of the mixer; ``layer`` is "Mamba1", "Mamba2" or "Mamba3".
    attn_layer_idx, attn_cfg
        The layers that are softmax attention: not supported, empty.
    rms_norm : bool
        Root mean square norm instead of layer norm.
    residual_in_fp32, fused_add_norm : bool
        As in ``modules.block.Block``.
    pad_vocab_size_multiple : int
        The size of the vocabulary is rounded up to a multiple of this.
    tie_embeddings : bool
        The head has the weights of the embedding.
    """

    d_model: int = 2560
    d_intermediate: int = 0
    n_layer: int = 64
    vocab_size: int = 50277
    ssm_cfg: dict[str, Any] = field(default_factory=dict)
    attn_layer_idx: list[int] = field(default_factory=list)
    attn_cfg: dict[str, Any] = field(default_factory=dict)
    rms_norm: bool = True
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True
