"""Linformer: softmax attention to keys and values projected along the sequence."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..._core.checks import wrong_shape
from ..operators import linformer
from . import _arguments
from ._attention_layer import HeadAttention, together


class LinformerAttention(HeadAttention):
    """Multi-head softmax attention to r projected keys and values, O(n r); not causal.

    ``o = softmax(q (E^T k)^T / sqrt(d)) F^T v`` with trained E and F (max_length, r), of which n
    tokens use the first n rows.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of heads, each of d = embed_dim / num_heads numbers.
    max_length : int
        Rows of E and F, the longest sequence.
    num_projections : int
        r, the number of projected keys.
    sharing : {'none', 'heads', 'key_value'}, default 'heads'
        An E and an F for each head, for all heads together, or one array as both.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, embed_dim is not a multiple of
        num_heads, or sharing is unknown; from `forward` if a sequence is longer than max_length.

    Notes
    -----
    4 (s + n) r d floating-point operations per head, s = n keys.  There are no states and steps:
    a projected key mixes all positions.  Padding counts as keys and values of 0, and tokens have
    their positions without it.

    References
    ----------
    Wang et al., "Linformer: self-attention with linear complexity", 2020, eq. 7 and section 4
    (sharing)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import LinformerAttention
    >>> layer = LinformerAttention(64, num_heads=4, max_length=128, num_projections=16)
    >>> layer(torch.ones(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    causal = False
    sharings = ("none", "heads", "key_value")
    _shown = ("embed_dim", "num_heads", "max_length", "num_projections", "sharing")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_length: int,
        num_projections: int,
        *,
        sharing: str = "heads",
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        if sharing not in self.sharings:
            raise ValueError(
                f"{self._name}: sharing is {sharing!r}; expected one of {self.sharings}"
            )
        super().__init__(embed_dim, num_heads, None, bias, dropout, **factory)
        self.sharing, self.max_length, self.num_projections = sharing, max_length, num_projections
        self._add_projections(bias, **factory)
        shape = (*((num_heads,) if sharing == "none" else ()), max_length, num_projections)
        self.E = nn.Parameter(torch.empty(shape, **factory))
        self.F = None if sharing == "key_value" else nn.Parameter(torch.empty(shape, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, E and F as those of linear layers."""
        super().reset_parameters()
        for x in (self.E, self.F):
            if x is not None:
                for matrix in x.view(-1, *x.shape[-2:]).unbind():
                    nn.init.xavier_uniform_(matrix)

    def _sequence(
        self, x: Tensor, lengths: Tensor | None, state: Any, return_state: bool
    ) -> tuple[Tensor, Any]:
        n = x.shape[1]
        if n > self.max_length:
            raise wrong_shape(self._name, "x", x, f"at most max_length = {self.max_length} tokens")
        q, k, v = self._operands(x)
        if lengths is not None:
            there = (torch.arange(n, device=x.device) < lengths[:, None])[:, None, :, None]
            k, v = torch.where(there, k, 0), torch.where(there, v, 0)
        E = self.E[..., :n, :]
        F = E if self.F is None else self.F[..., :n, :]
        return together(linformer(q, k, v, E, F)), None
