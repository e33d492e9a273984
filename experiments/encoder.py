"""A transformer that sees whole sequences, padded to the longest of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from training import waves

from linattn.torch import nn as layers


class Encoder(nn.Module):
    """Places added, then blocks: (batch, n, width) to the same, padding left out.

    Parameters
    ----------
    attentions : sequence of Attention
        Of each block, none of them causal.
    feedforward : int
        The width of the blocks' networks.
    longest : int
        The number of places.
    dropout : float, default 0.0
        In training.
    """

    def __init__(
        self,
        attentions: Sequence[layers.Attention],
        feedforward: int,
        longest: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            layers.TransformerBlock(x, dim_feedforward=feedforward, dropout=dropout)
            for x in attentions
        )
        width = attentions[0].embed_dim
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.register_buffer("places", sinusoids(longest, width), persistent=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = self.dropout(x + self.places[: x.shape[1]])
        for block in self.blocks:
            x = block(x, key_lengths=lengths)
        return self.norm(x)


def sinusoids(n: int, width: int) -> Tensor:
    """The places 0 to n - 1 as Vaswani et al. write them, section 3.5: (n, width)."""
    return waves(n, width).unflatten(1, (2, -1)).mT.flatten(1)[:, :width]
