"""A transformer block around any of these layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from torch import Tensor, nn
from torch.nn import functional

from . import _arguments
from ._attention_layer import Attention


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input.

    ``y = x + attention(norm(x))``, ``z = y + W_2 f(W_1 norm(y))``.  You call it like its attention,
    with the same states and steps.

    Parameters
    ----------
    attention : Attention
        Any layer of this package.
    dim_feedforward : int, optional
        The width between W_1 and W_2; 4 embed_dim by default.
    activation : callable, default torch.nn.functional.gelu
        f.
    norm_eps : float, default 1e-5
        Added to the variance by the norms.
    bias : bool, default True
        Whether norms, W_1 and W_2 have biases.
    dropout : float, default 0.0
        The probability of dropout after attention, f and W_2, in training.
    device, dtype
        Of the parameters.

    Raises
    ------
    TypeError, ValueError
        If attention is not a layer of this package, or an argument has the wrong type or is out
        of range.

    References
    ----------
    Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020, table 1
    (the norm before)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import LinearAttention, TransformerBlock
    >>> block = TransformerBlock(LinearAttention(64, num_heads=4))
    >>> block(torch.ones(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    @_arguments.keywords
    def __init__(
        self,
        attention: Attention,
        *,
        dim_feedforward: int | None = None,
        activation: Callable[[Tensor], Tensor] = functional.gelu,
        norm_eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        if not isinstance(attention, Attention):
            raise TypeError(
                f"{type(self).__name__}: attention is a {type(attention).__name__}; expected a "
                "layer of linattn.torch.nn, such as LinearAttention(embed_dim, num_heads)"
            )
        super().__init__()
        width = self.embed_dim = attention.embed_dim
        inner = 4 * width if dim_feedforward is None else dim_feedforward
        self.norm1 = nn.LayerNorm(width, norm_eps, bias=bias, **factory)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width, norm_eps, bias=bias, **factory)
        self.linear1 = nn.Linear(width, inner, bias=bias, **factory)
        self.linear2 = nn.Linear(inner, width, bias=bias, **factory)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def reset_parameters(self) -> None:
        """Draw new weights, also of the attention."""
        for child in (self.norm1, self.attention, self.norm2, self.linear1, self.linear2):
            child.reset_parameters()

    def forward(self, x: Tensor, **options: Any) -> Any:
        """Run the block on whole sequences (batch, n, embed_dim), with its attention's options."""
        y = self.attention(self.norm1(x), **options)
        y, state = y if options.get("return_state") else (y, None)
        y = self._residuals(x, y)
        return (y, state) if options.get("return_state") else y

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The output for one token per sequence, (batch, embed_dim), and the next state."""
        y, state = self.attention.step(self.norm1(x), state)
        return self._residuals(x, y), state

    def init_state(self, batch: int) -> Any:
        """The state of ``batch`` sequences before their first token."""
        return self.attention.init_state(batch)

    def _residuals(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.dropout(attended)
        inner = self.dropout(self.activation(self.linear1(self.norm2(x))))
        return x + self.dropout(self.linear2(inner))
