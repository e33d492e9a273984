"""The base classes of attention layers: projections, padding, states and steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..._states.state_arrays import State
from .._core.conversions import work_dtype
from .._core.operator import OPERATORS
from . import _arguments
from ._padding import padding


class Attention(nn.Module):
    """The base class of layers, which map tokens (batch, n, embed_dim) to tokens.

    You call each layer as

    ``layer(x, key_lengths=None, key_padding_mask=None, state=None, return_state=False)``;

    causal ones also have ``init_state(batch)`` and ``step(x, state)``.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    width : int
        The width of all heads together, which ``out_proj`` projects to ``embed_dim``.
    bias : bool
        Whether projections have biases.
    dropout : float
        The probability of dropout of the layer's output, in training.
    **factory
        device and dtype of the parameters.
    """

    #: Whether outputs are independent of later tokens; if so there are states and steps.
    causal: bool = True
    _kind: type[tuple[Any, ...]] = State
    #: The operator and its options, all of them: the registry has no defaults.
    _operator: str
    _options: dict[str, Any]
    #: Attributes that the layer's repr shows.
    _shown: tuple[str, ...] = ("embed_dim", "num_heads")

    def __init__(
        self, embed_dim: int, width: int, bias: bool, dropout: float, **factory: Any
    ) -> None:
        super().__init__()
        self.embed_dim = _arguments.integer(self._name, "embed_dim", embed_dim)
        self.out_proj = nn.Linear(width, embed_dim, bias=bias, **factory)
        self.dropout = nn.Dropout(_arguments.probability(self._name, "dropout", dropout))

    def __init_subclass__(cls, **options: Any) -> None:
        """Give each class code of its own for methods that it inherits."""
        super().__init_subclass__(**options)
        for name in ("forward", "step"):
            if name not in vars(cls):
                setattr(cls, name, _arguments.with_own_code(getattr(cls, name)))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def reset_parameters(self) -> None:
        """Draw new weights, as `torch.nn.MultiheadAttention` does, and set biases to 0."""
        for name, child in self.named_children():
            if name.endswith("_proj") and isinstance(child, nn.Linear):
                nn.init.xavier_uniform_(child.weight)
                if child.bias is not None:
                    nn.init.zeros_(child.bias)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)

    @_arguments.keywords
    def forward(
        self,
        x: Tensor,
        *,
        key_lengths: Any = None,
        key_padding_mask: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Run the layer on whole sequences.

        Parameters
        ----------
        x : tensor, shape (batch, n, embed_dim)
            Tokens.
        key_lengths : tensor of int, shape (batch,), optional
            The number of tokens of each sequence; padding follows them.
        key_padding_mask : tensor of bool, shape (batch, n), optional
            True for padding, at any position.  The layer skips padding and outputs 0 there.
        state : optional
            What came before, from `init_state` or an earlier call of a causal layer.
        return_state : bool, default False
            Return the state after the last token as well.

        Returns
        -------
        y : tensor, shape (batch, n, embed_dim)
        state
            Only with ``return_state``.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or shape, lengths are out of range, or a state is
            given or requested and the layer is not causal.
        """
        _arguments.tokens(self._name, x, self.embed_dim)
        _arguments.memory(self._name, self, x)
        if state is not None or return_state:
            self._need_states("forward")
        if state is not None:
            _arguments.state(self._name, state, self._kind, x.shape[0])
        pads = padding(self._name, x, key_lengths, key_padding_mask)
        if pads is not None:
            x = pads.strip(x)
        lengths = None if pads is None else pads.lengths
        o, state = self._sequence(x, lengths, state, return_state)
        y = self.dropout(self.out_proj(o))
        if pads is not None:
            y = pads.restore(y)
        return (y, state) if return_state else y

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run the layer on one token per sequence.

        Parameters
        ----------
        x : tensor, shape (batch, embed_dim)
            The token of each sequence.
        state
            From `init_state`, an earlier step, or ``forward(..., return_state=True)``.

        Returns
        -------
        y : tensor, shape (batch, embed_dim)
        state

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or shape, or the layer is not causal.
        """
        self._need_states("step")
        _arguments.token(self._name, x, self.embed_dim)
        _arguments.memory(self._name, self, x)
        _arguments.state(f"{self._name}.step", state, self._kind, x.shape[0])
        o, state = self._token(x, state)
        return self.dropout(self.out_proj(o)), state

    def init_state(self, batch: int) -> Any:
        """The state of ``batch`` sequences before their first token.

        Raises
        ------
        TypeError, ValueError
            If ``batch`` is not an integer or negative, or the layer is not causal.
        """
        self._need_states("init_state")
        if not isinstance(batch, (int, torch.SymInt)) or isinstance(batch, bool):
            raise TypeError(f"{self._name}.init_state: batch is {batch!r}; expected an integer")
        if batch < 0:
            raise ValueError(f"{self._name}.init_state: batch is {batch}; expected at least 0")
        return self._first(batch)

    def _need_states(self, method: str) -> None:
        if not self.causal:
            raise ValueError(
                f"{self._name}.{method}: the layer is not causal; expected a call on whole "
                "sequences, without state and return_state"
            )

    def _zeros(self, *shape: int) -> Tensor:
        """Zeros of a state's dtype."""
        device, dtype = kind_of(self.out_proj)
        return torch.zeros(shape, device=device, dtype=work_dtype(dtype))

    def _sequence(
        self, x: Tensor, lengths: Tensor | None, state: Any, return_state: bool
    ) -> tuple[Tensor, Any]:
        """The input of ``out_proj``, and the state after it."""
        return self._attend(self._operands(x), lengths, state, return_state)

    def _token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The same for one token."""
        return self._attend_token(self._operands(x), state)

    def _attend(
        self, operands: tuple[Any, ...], lengths: Tensor | None, state: Any, return_state: bool
    ) -> tuple[Tensor, Any]:
        """The result (batch, n, heads m) for operands (batch, *heads, n, ...), and the state."""
        if lengths is not None:
            lengths = lengths.view(-1, *(1 for _ in range(operands[0].ndim - 3)))
        o = OPERATORS[self._operator].forward(
            operands, key_lengths=lengths, initial_state=state, return_state=return_state,
            **self._options,
        )  # fmt: skip
        o, state = o if return_state else (o, None)
        return together(o), state

    def _attend_token(self, operands: tuple[Any, ...], state: Any) -> tuple[Tensor, Any]:
        """The result (batch, heads m) for operands (batch, *heads, ...), and the state."""
        o, state = OPERATORS[self._operator].step(operands, state, **self._options)
        return o.flatten(1), state

    def _operands(self, x: Tensor) -> tuple[Any, ...]:
        raise NotImplementedError

    def _first(self, batch: int) -> Any:
        raise NotImplementedError


class HeadAttention(Attention):
    """A layer whose queries, keys and values are projections of x, split into heads."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(
        self, embed_dim: int, num_heads: int, num_kv_heads: int | None, bias: bool, dropout: float,
        **factory: Any,
    ) -> None:  # fmt: skip
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        head_dim = _arguments.multiple(
            self._name, ("embed_dim", embed_dim), ("num_heads", num_heads)
        )
        _arguments.multiple(self._name, ("num_heads", num_heads), ("num_kv_heads", num_kv_heads))
        super().__init__(embed_dim, embed_dim, bias, dropout, **factory)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self._heads: tuple[int, ...] = (num_heads,)
        self._kv_heads: tuple[int, ...] = (num_kv_heads,)

    def _add_projections(self, bias: bool, **factory: Any) -> None:
        """Separate from the constructor, as the order of modules is that of their parameters."""
        width = self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=bias, **factory)
        self.k_proj = nn.Linear(self.embed_dim, width, bias=bias, **factory)
        self.v_proj = nn.Linear(self.embed_dim, width, bias=bias, **factory)

    def _operands(self, x: Tensor) -> tuple[Tensor, ...]:
        q = by_heads(self.q_proj(x), *self._heads)
        return q, *(by_heads(y(x), *self._kv_heads) for y in (self.k_proj, self.v_proj))


def kind_of(projection: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device and dtype of a projection's results."""
    weight = projection.weight
    if isinstance(weight, Tensor):
        return weight.device, weight.dtype
    return torch.device("cpu"), torch.float32  # quantised by PyTorch, whose weight is a method


def by_heads(x: Tensor, *heads: int) -> Tensor:
    """(batch, n, heads d) as (batch, *heads, n, d); (batch, heads d) as (batch, *heads, d)."""
    y = x.unflatten(-1, (*heads, -1))
    return y.movedim(1, -2) if x.ndim == 3 else y


def rates_by_heads(x: Tensor, *heads: int) -> Tensor:
    """(batch, n, heads) as (batch, *heads, n); (batch, heads) as (batch, *heads)."""
    y = x.unflatten(-1, heads)
    return y.movedim(1, -1) if x.ndim == 3 else y


def together(o: Tensor) -> Tensor:
    """(batch, *heads, n, m) as (batch, n, heads m); the same where there are no heads."""
    return o if o.ndim == 3 else o.flatten(1, -3).transpose(1, 2).flatten(2)
