"""``fla.modules.rotary``: rotary position embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ._activations import wide
from ._mixing import rotary_embedding_fwdbwd

__all__ = ["RotaryEmbedding", "rotary_embedding"]


def rotary_embedding(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x [B, T, H, D] rotated by the angles of its positions, cos and sin [TR, R / 2]."""
    return rotary_embedding_fwdbwd(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, inplace)


class RotaryEmbedding(nn.Module):
    """Queries and keys [B, T, H, D], rotated by angles that are proportional to their positions.

    Su et al. 2021; with ``scale_base`` they also grow and shrink with them (Sun et al. 2022,
    XPos).  ``max_seqlen`` is the number of positions if that is not T + seqlen_offset.
    """

    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self, dim: int, base: float = 10000.0, scale_base: float | None = None,
        interleaved: bool = False, pos_idx_in_fp32: bool = True, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if dim % 2:
            raise ValueError(f"RotaryEmbedding: dim is {dim}; expected an even number")
        self.dim, self.base, self.scale_base = dim, float(base), scale_base
        self.interleaved, self.pos_idx_in_fp32 = interleaved, pos_idx_in_fp32
        even = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        scale = None if scale_base is None else (even + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("inv_freq", self._frequencies(device), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.length = 0

    def forward(
        self, q: Tensor, k: Tensor, seqlen_offset: int | Tensor = 0,
        cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
        chunk_indices: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if max_seqlen is None:
            furthest = int(torch.as_tensor(seqlen_offset).max())
            max_seqlen = q.shape[1] + furthest
        self.length = max(self.length, max_seqlen)  # in XPos, angles' factors depend on it
        of_q, of_k = self._tables()
        where = {"seqlen_offsets": seqlen_offset, "cu_seqlens": cu_seqlens}
        return self._turned(q, of_q, where), self._turned(k, of_k, where)

    def _turned(self, x: Tensor, tables: tuple[Tensor, Tensor], where: dict[str, Any]) -> Tensor:
        cos, sin = (t.to(x.dtype) for t in tables)
        return rotary_embedding(x, cos, sin, self.interleaved, **where)

    def _frequencies(self, device: Any) -> Tensor:
        even = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1 / self.base ** (even / self.dim)

    def _tables(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Cosines and sines of queries, and of keys."""
        frequencies = self.inv_freq  # of the model's dtype
        if self.pos_idx_in_fp32:
            frequencies = self._frequencies(frequencies.device)
        at = torch.arange(self.length, device=frequencies.device, dtype=frequencies.dtype)
        angles = torch.outer(at, frequencies)
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None or self.scale_base is None:
            return (cos, sin), (cos, sin)
        power = wide(self.scale) ** ((at - self.length // 2) / self.scale_base)[:, None]
        return (cos * power, sin * power), (cos / power, sin / power)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}, interleaved={self.interleaved}"
