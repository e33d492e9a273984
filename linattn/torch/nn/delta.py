"""Fast weights: linear attention with the delta rule."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from ..._states.state_arrays import State
from ..feature_maps import DPFP
from . import _arguments
from ._attention_layer import HeadAttention, rates_by_heads


class FastWeightAttention(HeadAttention):
    """Multi-head causal linear attention with the delta rule and DPFP features.

    ``s_i = s_{i-1} + beta_i phi(k_i) (v_i - s_{i-1}^T phi(k_i))^T``, ``o_i = s_i^T phi(q_i)``:
    each write replaces a share beta of what the memory returns for the key.
    ``beta_i = sigmoid(W x_i)``, one number per head; features are divided by their sum.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of heads, each of d = embed_dim / num_heads numbers.
    nu : int, default 1
        Blocks of features: there are f = 2 d nu.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, or embed_dim is not a multiple of
        num_heads.

    Notes
    -----
    Time and memory O(n), and O(1) per token for `step`.  A state is a `linattn.State`: s (batch,
    num_heads, f, d).

    References
    ----------
    Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers", ICML 2021,
    eq. 24-25 (the rule), 26 (the sum), 37-38 (features)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import FastWeightAttention
    >>> layer, x = FastWeightAttention(64, num_heads=4, nu=2), torch.ones(2, 10, 64)
    >>> y, state = layer(x, return_state=True)
    >>> y.shape, state.s.shape
    (torch.Size([2, 10, 64]), torch.Size([2, 4, 64, 16]))
    """

    _operator = "delta"
    _shown = ("embed_dim", "num_heads", "nu")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        nu: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        super().__init__(embed_dim, num_heads, None, bias, dropout, **factory)
        self.nu, self.feature_map = nu, DPFP(nu)
        self._options = {"feature_map": self.feature_map, "scale": 1.0}
        self._add_projections(bias, **factory)
        self.beta_proj = nn.Linear(embed_dim, num_heads, bias=bias, **factory)
        self.reset_parameters()

    def _operands(self, x: Tensor) -> tuple[Tensor, ...]:
        beta = torch.sigmoid(self.beta_proj(x))
        return *super()._operands(x), rates_by_heads(beta, self.num_heads)

    def _first(self, batch: int) -> State:
        f = self.feature_map.features(self.head_dim)
        return State(self._zeros(batch, self.num_heads, f, self.head_dim))
