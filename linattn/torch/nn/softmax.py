"""Exact softmax attention as a layer, a baseline for the others."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn import functional

from ..._core.summaries import shown_fields
from . import _arguments
from ._attention_layer import HeadAttention, kind_of, together


class Cache(NamedTuple):
    """The state of softmax attention: all keys and values so far.

    Parameters
    ----------
    k, v : tensor, shape (batch, num_kv_heads, tokens, d)
        Keys and values.
    there : tensor of bool, shape (batch, tokens), optional
        False for padding; None without padding.
    """

    k: Tensor
    v: Tensor
    there: Tensor | None = None

    def __repr__(self) -> str:
        return shown_fields(self)


class SoftmaxAttention(HeadAttention):
    """Multi-head softmax attention, by PyTorch's own operator, O(n^2).

    ``o_i = sum_j p_ij v_j``, ``p_i = softmax(q_i.k_j / sqrt(d))``, over j <= i if causal.  The
    arguments and weights are those of `LinearAttention`; the state grows with each token.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of query heads, each of d = embed_dim / num_heads numbers.
    causal : bool, default True
        Whether tokens attend only to themselves and earlier tokens.
    num_kv_heads : int, optional
        The number of key and value heads, a divisor of num_heads, which is the default.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, or a number of heads is not a
        multiple as above.

    Notes
    -----
    4 n^2 d floating-point operations per head, half of it if causal, and O(n) per token for
    `step`.  A state is a `Cache`.

    References
    ----------
    Vaswani et al., "Attention is all you need", NeurIPS 2017, eq. 1; Ainslie et al., "GQA",
    EMNLP 2023, section 2.2 (fewer heads of keys)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import SoftmaxAttention
    >>> layer, x = SoftmaxAttention(64, num_heads=4), torch.ones(2, 10, 64)
    >>> y, state = layer(x, return_state=True)
    >>> state.k.shape
    torch.Size([2, 4, 10, 16])
    """

    _kind = Cache
    _shown = ("embed_dim", "num_heads", "num_kv_heads", "causal")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = True,
        num_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        super().__init__(embed_dim, num_heads, num_kv_heads, bias, dropout, **factory)
        self.causal = causal
        self._add_projections(bias, **factory)
        self.reset_parameters()

    def _sequence(
        self, x: Tensor, lengths: Tensor | None, state: Any, return_state: bool
    ) -> tuple[Tensor, Any]:
        n = x.shape[1]
        q, k, v = self._operands(x)
        there = None
        if lengths is not None:
            there = torch.arange(n, device=x.device) < lengths[:, None]
        cache = Cache(k, v, there) if state is None else _extended(state, k, v, there)
        k, v, there = cache
        mask = None
        if self.causal and (k.shape[2] > n or there is not None):
            mask = torch.ones(n, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - n)
        if there is not None:
            mask = there[:, None, None] if mask is None else there[:, None, None] & mask
        o = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )  # fmt: skip
        return together(o), cache if return_state else None

    def _token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        o, state = self._sequence(x[:, None], None, state, True)
        return o[:, 0], state

    def _first(self, batch: int) -> Cache:
        shape = (batch, self.num_kv_heads, 0, self.head_dim)
        device, dtype = kind_of(self.k_proj)
        k = torch.zeros(shape, device=device, dtype=dtype)
        return Cache(k, k.clone())


def _extended(cache: Cache, k: Tensor, v: Tensor, there: Tensor | None) -> Cache:
    """The cache followed by more keys and values."""
    past = cache.there
    if past is not None or there is not None:
        old, new = (
            torch.ones(y.shape[0], y.shape[2], dtype=torch.bool, device=y.device) if x is None
            else x for x, y in ((past, cache.k), (there, k))
        )  # fmt: skip
        there = torch.cat([old, new], 1)
    return Cache(torch.cat([cache.k, k], 2), torch.cat([cache.v, v], 2), there)
