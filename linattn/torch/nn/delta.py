"""Fast weights: linear attention that overwrites what it remembers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..._state import State
from ..feature_maps import DPFP
from ..operators import delta, delta_step
from . import _check
from ._base import Attention, Operator, by_heads, rates_by_heads

_DELTA = Operator(delta, delta_step)


class FastWeightAttention(Attention):
    """Multi-head causal linear attention with the delta rule and DPFP features.

    ``s_i = s_{i-1} + beta_i phi(k_i) (v_i - s_{i-1}^T phi(k_i))^T``, ``o_i = s_i^T phi(q_i)``:
    a write replaces the share beta of what the memory held at the key, where causal linear
    attention adds to it.  ``beta_i = sigmoid(W x_i)``, one number a head; features are divided
    by their sum.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        Heads, each of d = embed_dim / num_heads numbers.
    nu : int, default 1
        Blocks of features: there are f = 2 d nu.
    bias : bool, default True
        Whether projections have biases.
    dropout : float, default 0.0
        Of the layer's output, in training.
    device, dtype
        Of the parameters.

    Raises
    ------
    TypeError
        If an argument has another type.
    ValueError
        If embed_dim is no multiple of num_heads, nu is below 1, or dropout no probability.

    Notes
    -----
    Time and memory O(n), and O(1) a token for `step`.  A state is a `linattn.State`: s (batch,
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

    _shown = ("embed_dim", "num_heads", "nu")

    @_check.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        nu: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        factory = {"device": device, "dtype": dtype}
        head_dim = _check.multiple(self._name, ("embed_dim", embed_dim), ("num_heads", num_heads))
        _check.integer(self._name, "nu", nu)
        super().__init__(embed_dim, embed_dim, bias, dropout, **factory)
        self.num_heads, self.head_dim, self.nu = num_heads, head_dim, nu
        self.feature_map = DPFP(nu)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)
        self.beta_proj = nn.Linear(embed_dim, num_heads, bias=bias, **factory)
        self.reset_parameters()

    def _operands(self, x: Tensor) -> tuple[Tensor, ...]:
        projections = self.q_proj, self.k_proj, self.v_proj
        beta = torch.sigmoid(self.beta_proj(x))
        return (
            *(by_heads(y(x), self.num_heads) for y in projections),
            rates_by_heads(beta, self.num_heads),
        )

    def _sequence(
        self, x: Tensor, lengths: Tensor | None, state: Any, return_state: bool
    ) -> tuple[Tensor, Any]:
        return _DELTA.sequence(
            self._operands(x), lengths, state, return_state, feature_map=self.feature_map
        )

    def _token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return _DELTA.token(self._operands(x), state, feature_map=self.feature_map)

    def _first(self, batch: int) -> State:
        f = self.feature_map.features(self.head_dim)
        return State(self._zeros(batch, self.num_heads, f, self.head_dim))
