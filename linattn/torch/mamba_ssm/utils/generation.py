"""Generation with states that layers update in place."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...nn.language_model import drawn

__all__ = ["GenerateOutput", "GenerationMixin", "InferenceParams", "decode", "sample"]


@dataclass
class InferenceParams:
    """The states of sequences that are continued token by token.

    Parameters
    ----------
    max_seqlen, max_batch_size : int
        Ignored: states do not grow.
    seqlen_offset : int
        The number of tokens so far; the caller adds to it.  At 0 layers take whole sequences.
    batch_size_offset : int
        Ignored.
    key_value_memory_dict : dict
        The states of each layer, by its number.
    lengths_per_sample : Tensor, optional
        Ignored.
    """

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[Any, Any] = field(default_factory=dict)
    lengths_per_sample: Tensor | None = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        """Begin again; layers overwrite their states with those of the next sequence."""
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


@dataclass
class GenerateOutput:
    """Generated tokens (batch, max_length), and the logits that each was drawn from."""

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None


def sample(
    logits: Tensor, top_k: int = 1, top_p: float = 0.0, min_p: float = 0.0, temperature: float = 1.0
) -> Tensor:
    """Draw a token from each row of logits (batch, vocab_size).

    Parameters
    ----------
    logits : Tensor, (batch, vocab_size)
        Divided by ``temperature``.
    top_k : int
        Only from the k most probable tokens: the most probable one for 1, any for 0.
    top_p : float
        Only from the fewest most probable tokens whose probabilities add up to this; any for 0.
    min_p : float
        Only from tokens at least min_p times as probable as the most probable one.
    temperature : float
        Above 0.

    Returns
    -------
    Tensor of int, (batch,)
    """
    if top_k == 1:
        return logits.argmax(-1)
    if min_p > 0:
        p = (logits.float() / temperature).softmax(-1)
        logits = logits.masked_fill(p < min_p * p.amax(-1, keepdim=True), -torch.inf)
    k = min(top_k, logits.shape[-1]) or None
    return drawn(logits, temperature, k, top_p if 0 < top_p < 1 else None, None)


@torch.no_grad()
def decode(
    input_ids: Tensor,
    model: Any,
    max_length: int,
    top_k: int = 1,
    top_p: float = 0.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
    repetition_penalty: float = 1.0,
    eos_token_id: int | None = None,
    teacher_outputs: Tensor | None = None,
    vocab_size: int | None = None,
    cg: bool = False,
    enable_timing: bool = False,
    output_scores: bool = False,
    streamer: Any = None,
) -> GenerateOutput:
    """Continue sequences token by token, all of the same length.

    Parameters
    ----------
    input_ids : Tensor of int, (batch, seqlen)
        The tokens to start from.
    model : callable
        Called as a ``MambaLMHeadModel``.
    max_length : int
        The length of the result at most, with the tokens to start from.
    top_k, top_p, min_p, temperature
        As in `sample`.
    repetition_penalty : float
        Divides positive logits of tokens that are in the sequence, and multiplies negative ones.
    eos_token_id : int, optional
        End when all sequences have this token at the same time.
    teacher_outputs : Tensor of int, (batch, length), optional
        The tokens to take in place of drawn ones.
    vocab_size : int, optional
        Draw only from the first so many tokens.
    cg : bool
        Ignored: there are no CUDA graphs on CPUs.
    enable_timing : bool
        Print the time that it took.
    output_scores : bool
        Keep the logits.
    streamer : optional
        Its ``put`` is called with the tokens to start from and each new one, ``end`` at the end.

    Returns
    -------
    GenerateOutput
    """
    start = time.perf_counter()
    state = InferenceParams(max_seqlen=max_length, max_batch_size=len(input_ids))
    sequences, scores = input_ids, []
    if streamer is not None:
        streamer.put(input_ids)
    tokens = input_ids
    while sequences.shape[1] < max_length:
        logits = model(tokens, inference_params=state, num_last_tokens=1).logits[:, -1, :vocab_size]
        if output_scores:
            scores.append(logits.clone())
        state.seqlen_offset += tokens.shape[1]
        if teacher_outputs is not None and state.seqlen_offset < teacher_outputs.shape[1]:
            token = teacher_outputs[:, state.seqlen_offset]
        else:
            logits = _penalized(logits, sequences, repetition_penalty)
            token = sample(logits, top_k, top_p, min_p, temperature)
        tokens = token[:, None]
        sequences = torch.cat([sequences, tokens], 1)
        if streamer is not None:
            streamer.put(tokens)
        if eos_token_id is not None and bool((tokens == eos_token_id).all()):
            break
    if streamer is not None:
        streamer.end()
    if enable_timing:
        seconds = time.perf_counter() - start
        print(f"Prompt processing + decoding time: {1000 * seconds:.0f}ms")
    return GenerateOutput(sequences, tuple(scores))


def _penalized(logits: Tensor, sequences: Tensor, penalty: float) -> Tensor:
    if penalty == 1.0:
        return logits
    found = logits.gather(1, sequences)
    found = torch.where(found < 0, found * penalty, found / penalty)
    return logits.scatter(1, sequences, found)


class GenerationMixin:
    """Gives a model ``generate``."""

    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        min_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Tokens (batch, max_length); see `decode`, whose other arguments it takes."""
        output = decode(
            input_ids, self, max_length, top_k=top_k, top_p=top_p, min_p=min_p,
            temperature=temperature, output_scores=output_scores, **kwargs,
        )  # fmt: skip
        if not output_scores:
            output.scores = None
        return output if return_dict_in_generate else output.sequences
