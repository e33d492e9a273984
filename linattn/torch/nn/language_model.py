"""A language model of transformer blocks, which generates text from their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._core.checks import wrong_shape
from ..._core.summaries import shown_fields
from . import _arguments
from ._padding import padding
from .transformer import TransformerBlock


class ModelState(NamedTuple):
    """The state of a `TransformerLM`.

    Parameters
    ----------
    blocks : tuple
        The states of its blocks.
    position : tensor of int, shape (batch,)
        The number of tokens so far.
    """

    blocks: tuple[Any, ...]
    position: Tensor

    def __repr__(self) -> str:
        return shown_fields(self)


class TransformerLM(nn.Module):
    """A language model: embedding, blocks, a norm, and the embedding again as the head.

    Parameters
    ----------
    num_tokens : int
        The size of the vocabulary.
    blocks : sequence of TransformerBlock
        At least one, all of the same width.
    max_length : int, optional
        Train an embedding of each position, and limit sequences to this length.
    dropout : float, default 0.0
        The probability of dropout of the embedding, in training.
    device, dtype
        Of the embedding and the norm.

    Raises
    ------
    TypeError, ValueError
        If blocks are not as above, or an argument has the wrong type or is out of range.

    References
    ----------
    Press and Wolf, "Using the output embedding to improve language models", EACL 2017 (the
    head)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import LinearAttention, TransformerBlock, TransformerLM
    >>> blocks = [TransformerBlock(LinearAttention(32, num_heads=2)) for _ in range(2)]
    >>> model = TransformerLM(100, blocks).eval()
    >>> model(torch.zeros(2, 10, dtype=torch.int64)).shape
    torch.Size([2, 10, 100])
    >>> model.generate(torch.tensor([[1, 2, 3]]), steps=5).shape
    torch.Size([1, 8])
    """

    @_arguments.keywords
    def __init__(
        self,
        num_tokens: int,
        blocks: Sequence[TransformerBlock],
        *,
        max_length: int | None = None,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        name = type(self).__name__
        blocks = list(blocks)
        if not blocks:
            raise ValueError(f"{name}: blocks is empty; expected at least one TransformerBlock")
        for i, block in enumerate(blocks):
            if not isinstance(block, TransformerBlock):
                raise TypeError(
                    f"{name}: blocks[{i}] is a {type(block).__name__}; expected a TransformerBlock"
                )
            if block.embed_dim != blocks[0].embed_dim:
                raise ValueError(
                    f"{name}: blocks[{i}] has embed_dim {block.embed_dim}; expected "
                    f"{blocks[0].embed_dim}, as blocks[0]"
                )
        super().__init__()
        width = self.embed_dim = blocks[0].embed_dim
        self.num_tokens, self.max_length = num_tokens, max_length
        self.embedding = nn.Embedding(num_tokens, width, **factory)
        self.positions = None
        if max_length is not None:
            self.positions = nn.Embedding(max_length, width, **factory)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, **factory)
        self._reset_embeddings()

    def reset_parameters(self) -> None:
        """Draw new weights, also of the blocks."""
        self._reset_embeddings()
        self.norm.reset_parameters()
        for block in self.blocks:
            block.reset_parameters()  # type: ignore[operator]  # a TransformerBlock

    def _reset_embeddings(self) -> None:
        for embedding in (self.embedding, self.positions):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=0.02)

    def extra_repr(self) -> str:
        return f"num_tokens={self.num_tokens}, max_length={self.max_length}"

    @_arguments.keywords
    def forward(
        self,
        tokens: Tensor,
        *,
        key_lengths: Any = None,
        key_padding_mask: Tensor | None = None,
        state: ModelState | None = None,
        return_state: bool = False,
    ) -> Any:
        """The logits of the token after each token.

        Parameters
        ----------
        tokens : tensor of int, shape (batch, n)
            Indices in the vocabulary.
        key_lengths, key_padding_mask, state, return_state
            As in `Attention.forward`.

        Returns
        -------
        logits : tensor, shape (batch, n, num_tokens)
        state : ModelState
            Only with ``return_state``.

        Raises
        ------
        TypeError, ValueError
            As in `Attention.forward`, or if tokens have the wrong type or shape.
        """
        x, state = self._body(tokens, key_lengths, key_padding_mask, state, return_state)
        logits = self._head(x)
        return (logits, state) if return_state else logits

    def step(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """The logits (batch, num_tokens) after one token per sequence, (batch,), and the state."""
        self._check("TransformerLM.step", "tokens", tokens, 1, "(batch,)")
        _arguments.state("TransformerLM.step", state, ModelState, len(tokens))
        x, states = self._embed(tokens, state.position), []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, after = block.step(x, before)  # type: ignore[operator]  # a TransformerBlock
            states.append(after)
        return self._head(x), ModelState(tuple(states), state.position + 1)

    def init_state(self, batch: int) -> ModelState:
        """The state of ``batch`` sequences before their first token."""
        blocks = tuple(block.init_state(batch) for block in self.blocks)  # type: ignore[operator]
        return ModelState(blocks, self._position(batch))

    @torch.no_grad()
    @_arguments.keywords
    def generate(
        self,
        prompt: Tensor,
        steps: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop_token: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue sequences token by token, in constant time per token if layers are linear.

        Call ``eval()`` first to turn dropout off.

        Parameters
        ----------
        prompt : tensor of int, shape (batch, n), n >= 1
            The tokens to start from.
        steps : int
            The number of tokens to add at most.
        temperature : float, default 1.0
            Divides the logits; 0 takes the most probable token.
        top_k : int, optional
            Sample only from this number of most probable tokens.
        top_p : float, optional
            Sample only from the fewest most probable tokens whose probabilities, after ``top_k``,
            add up to at least this number, above 0 and at most 1.
        stop_token : int, optional
            Ends a sequence, which is then padded with it.  Generation ends with the last sequence.
        generator : torch.Generator, optional
            Samples tokens.

        Returns
        -------
        tensor of int, shape (batch, n + steps), or shorter if all sequences have ended

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or shape or is out of range, or a layer is not causal.
        """
        name = "TransformerLM.generate"
        self._check(name, "prompt", prompt, 2, "(batch, tokens)")
        if not prompt.shape[1]:
            raise ValueError(f"{name}: prompt has shape {tuple(prompt.shape)}; expected a token")
        if steps:
            _arguments.integer(name, "steps", steps)
        _arguments.not_negative(name, "temperature", temperature)
        if top_k is not None and _arguments.integer(name, "top_k", top_k) > self.num_tokens:
            raise ValueError(f"{name}: top_k is {top_k}; expected at most {self.num_tokens}")
        if top_p is not None and _arguments.positive(name, "top_p", top_p) > 1:
            raise ValueError(f"{name}: top_p is {top_p}; expected a number above 0, at most 1")
        if stop_token is not None:
            _arguments.index(name, "stop_token", stop_token, self.num_tokens)
        x, state = self._body(prompt, None, None, None, True)
        logits, tokens = self._head(x[:, -1]), [prompt]
        ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
        for i in range(steps):
            token = drawn(logits, temperature, top_k, top_p, generator).to(prompt.dtype)
            if stop_token is not None:
                token = token.masked_fill(ended, stop_token)
                ended = token == stop_token
            tokens.append(token[:, None])
            if i == steps - 1 or (stop_token is not None and ended.all()):
                break
            logits, state = self.step(token, state)
        return torch.cat(tokens, 1)

    def _body(
        self, tokens: Tensor, key_lengths: Any, key_padding_mask: Any, state: Any,
        return_state: bool,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """The input of the head, (batch, n, embed_dim), and the state."""
        name = type(self).__name__
        self._check(name, "tokens", tokens, 2, "(batch, tokens)")
        if state is not None:
            _arguments.state(name, state, ModelState, len(tokens))
        batch, n = tokens.shape
        pads = padding(name, tokens, key_lengths, key_padding_mask)
        begin = self._position(batch) if state is None else state.position
        place = torch.arange(n, device=tokens.device).expand(batch, n)
        if key_padding_mask is not None:
            place = (~key_padding_mask).cumsum(1) - 1
        if pads is not None:
            place = place.clamp(0)
        x, states = self._embed(tokens, begin[:, None] + place), []
        options = {"key_lengths": key_lengths, "key_padding_mask": key_padding_mask}
        for i, block in enumerate(self.blocks):
            x = block(
                x, state=None if state is None else state.blocks[i], return_state=return_state,
                **options,
            )  # fmt: skip
            if return_state:
                x, after = x
                states.append(after)
        if not return_state:
            return x, None
        end = begin + (n if pads is None else pads.lengths)
        return x, ModelState(tuple(states), end)

    def _embed(self, tokens: Tensor, position: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        if self.positions is not None:
            self._check_positions(position)
            x = x + self.positions(position)
        y: Tensor = self.dropout(x)
        return y

    def _head(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.embedding.weight)

    def _position(self, batch: int) -> Tensor:
        return torch.zeros(batch, dtype=torch.int64, device=self.embedding.weight.device)

    def _check_positions(self, position: Tensor) -> None:
        found = _arguments.values(position)
        if self.max_length is None or found is None or not found.size:
            return
        last = found.max()
        if last >= self.max_length:
            raise ValueError(
                f"TransformerLM: tokens reach position {last}; expected less than max_length = "
                f"{self.max_length}"
            )

    def _check(self, method: str, name: str, tokens: Any, axes: int, expected: str) -> None:
        _arguments.tensor(method, name, tokens)
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"{method}: {name} has dtype {tokens.dtype}; expected int64 or int32")
        if tokens.ndim != axes:
            raise wrong_shape(method, name, tokens, expected)
        found = _arguments.values(tokens)
        if found is None or not found.size:
            return
        first, last = found.min(), found.max()
        if first < 0 or last >= self.num_tokens:
            raise ValueError(
                f"{method}: {name} has values from {first} to {last}; expected 0 to "
                f"{self.num_tokens - 1}, as num_tokens is {self.num_tokens}"
            )


def drawn(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """A token for each row, (batch,)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    p = logits.softmax(-1)
    if top_p is not None:
        falling, order = p.sort(-1, descending=True)
        before = falling.cumsum(-1) - falling  # the sum of more probable tokens
        p = torch.zeros_like(p).scatter(-1, order, falling.masked_fill(before >= top_p, 0))
    return torch.multinomial(p, 1, generator=generator)[:, 0]
