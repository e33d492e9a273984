"""Log-linear attention: earlier tokens count by their level, in blocks of powers of two.

Token j is read at token t with ``level_scales[t, l]``, l the number of bits of ``t xor j``, times
``e^{g_{j+1} + ... + g_t} q_t.k_j``.  So t reads one state of each set bit of t: the 2^b tokens
before the one where that bit was set.  Within chunks of 64 tokens, scores are computed; from
chunk to chunk, a state of each bit is kept, as a binary counter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._core import conversions
from ._keywords import Given
from ._layout import check_shape, check_tensor, check_tokens, count_sequences, scale_of
from ._rules import family
from ._states import LogLinearAttentionState

_BITS = 6
_CHUNK = 1 << _BITS
_PREVIOUS = ("q_prev", "k_prev", "v_prev", "g_prev", "level_scales_prev")


@family(
    "gated",
    {
        "chunk_log_linear_attn": "q k v g level_scales initial_state output_final_state "
        "cu_seqlens scale=1.0",
    },
    types={"initial_state": "LogLinearAttentionState, optional"},
)
def _log_linear_attn(name: str, given: Given) -> tuple[Tensor, LogLinearAttentionState | None]:
    """Log-linear attention: tokens in blocks of powers of two, each with a scale.

    Computed by PyTorch, in O(T log T).

    Returns
    -------
    o : Tensor, [B, T, HV, V]
    final_state : LogLinearAttentionState or None
        None without ``output_final_state``.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x, scales = torch.ones(1, 3, 2, 4), torch.ones(1, 3, 2, 3)
    >>> o, _ = fla.chunk_log_linear_attn(x, x, x, 0 * x[..., 0], scales)
    >>> o[0, :, 0, 0]
    tensor([ 4.,  8., 12.])
    """
    check_tokens(name, given)
    v, level_scales, cu_seqlens = (given[x] for x in ("v", "level_scales", "cu_seqlens"))
    check_shape(name, "g", given["g"], v.shape[:3], "[B, T, HV]")
    check_tensor(name, "level_scales", level_scales)
    expected = (*v.shape[:3], level_scales.shape[-1])
    check_shape(name, "level_scales", level_scales, expected, "[B, T, HV, L]")
    wide = conversions.work_dtype(given["dtype"])
    tokens = [given[x].to(wide) for x in ("q", "k", "v", "g", "level_scales")]
    n = count_sequences(name, "q", v, cu_seqlens)
    starts = _starts(name, given["initial_state"], n, cu_seqlens is not None)
    parts = [tokens]
    if cu_seqlens is not None:
        lengths = cu_seqlens.diff().tolist()
        parts = [list(x) for x in zip(*(x.split(lengths, 1) for x in tokens), strict=True)]
    results = [_sequence(name, x, start) for x, start in zip(parts, starts, strict=True)]
    o = scale_of(given) * torch.cat([x for x, _ in results], 1)
    state = _joined([x for _, x in results]) if given["output_final_state"] else None
    return o.to(given["dtype"]).contiguous(), state


def _starts(name: str, state: Any, n: int, packed: bool) -> list[Any]:
    """A state for each sequence, or one for a batch of equally many tokens."""
    if state is None:
        return [None] * (n if packed else 1)
    if not hasattr(state, "level_scales_prev"):
        raise TypeError(
            f"{name}: initial_state is a {type(state).__name__}; expected a LogLinearAttentionState"
        )
    if len(state.offsets) != n:
        raise ValueError(f"{name}: initial_state has {len(state.offsets)} sequences; expected {n}")
    if not packed:
        if (state.offsets != state.offsets[0]).any():
            raise ValueError(
                f"{name}: initial_state.offsets are {state.offsets.tolist()}; expected one number "
                "of tokens in a batch"
            )
        return [state]
    fields = ("ht", "offsets", *_PREVIOUS)
    return [
        LogLinearAttentionState(*(getattr(state, x)[i : i + 1] for x in fields)) for i in range(n)
    ]


def _sequence(
    name: str, tokens: list[Tensor], start: Any
) -> tuple[Tensor, LogLinearAttentionState]:
    """Outputs of sequences of equally many tokens, [B, T, ...], and their states."""
    count, seen = 0, tokens[1].shape[1]
    counter: dict[int, Tensor] = {}
    if start is not None:
        before = int(start.offsets[0])
        count, partial = divmod(before, _CHUNK)
        counter = {b: start.ht[:, b] for b in range(count.bit_length()) if count >> b & 1}
        previous = [getattr(start, x)[:, :partial].to(tokens[0].dtype) for x in _PREVIOUS]
        tokens = [torch.cat(pair, 1) for pair in zip(previous, tokens, strict=True)]
    n = tokens[1].shape[1]
    most = max(count * _CHUNK + n - 1, 0).bit_length() + 1
    if tokens[4].shape[3] < most:
        raise ValueError(
            f"{name}: level_scales has {tokens[4].shape[3]} levels; expected at least {most}, for "
            f"{count * _CHUNK + n} tokens"
        )
    o = _attend(tokens, counter, count)
    rest = n % _CHUNK
    last = [_lengthened(x[:, n - rest :], _CHUNK - rest) for x in tokens]
    count += n // _CHUNK
    b, heads, d, m = len(o), tokens[2].shape[2], tokens[1].shape[3], tokens[2].shape[3]
    nothing = o.new_zeros(b, heads, d, m)
    ht = torch.stack([counter.get(i, nothing) for i in range(max(count.bit_length(), 1))], 1)
    offsets = torch.full((b,), count * _CHUNK + rest, dtype=torch.int32, device=o.device)
    return o[:, n - seen :], LogLinearAttentionState(ht, offsets, *last)


def _lengthened(x: Tensor, more: int) -> Tensor:
    """x [B, T, ...] and ``more`` tokens of zeros."""
    return torch.cat([x, x.new_zeros(x.shape[0], more, *x.shape[2:])], 1)


def _attend(tokens: list[Tensor], counter: dict[int, Tensor], count: int) -> Tensor:
    """Outputs of tokens that begin with chunk ``count``; leaves ``counter`` after the last one."""
    n, groups = tokens[1].shape[1], tokens[2].shape[2] // tokens[1].shape[2]
    # (B, H, chunks, 64, ...), zeros past the end
    q, k, v, g, scales = (
        _lengthened(x, -n % _CHUNK).unflatten(1, (-1, _CHUNK)).movedim(3, 1) for x in tokens
    )
    if groups > 1:
        q, k = (x.repeat_interleave(groups, 1) for x in (q, k))
    decays = g.cumsum(-1)
    o = _within(q, k, decays, scales) @ v
    writes = (k * (decays[..., -1:] - decays).exp().unsqueeze(-1)).mT @ v
    q = q * decays.exp().unsqueeze(-1)
    forget = decays[..., -1, None, None].exp()
    reads = []
    for i in range(q.shape[2]):
        read = torch.zeros_like(o[:, :, i])
        for b, state in counter.items():
            read = read + scales[:, :, i, :, _BITS + 1 + b, None] * (q[:, :, i] @ state)
        reads.append(read)
        if (i + 1) * _CHUNK <= n:
            _push(counter, count + i, writes[:, :, i], forget[:, :, i])
    o = o + torch.stack(reads, 2) if reads else o
    return o.flatten(2, 3)[:, :, :n].transpose(1, 2)


def _within(q: Tensor, k: Tensor, decays: Tensor, scales: Tensor) -> Tensor:
    """Scores of pairs of tokens of a chunk."""
    place = torch.arange(_CHUNK, device=q.device)
    later = place[:, None] < place
    decay = (decays.unsqueeze(-1) - decays.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()
    differ = place[:, None] ^ place
    level = sum((differ >> b > 0).long() for b in range(_BITS))
    level = torch.as_tensor(level).clamp(max=scales.shape[-1] - 1)
    return q @ k.mT * decay * scales.gather(-1, level.expand(*decay.shape))


def _push(counter: dict[int, Tensor], count: int, write: Tensor, forget: Tensor) -> None:
    """Adds a chunk to the states of ``count`` chunks: states of equal size become one."""
    for b in counter:
        counter[b] = forget * counter[b]
    b = 0
    while count >> b & 1:
        write = write + counter.pop(b)
        b += 1
    counter[b] = write


def _joined(states: list[LogLinearAttentionState]) -> LogLinearAttentionState:
    """One state of the states of all sequences."""
    if len(states) == 1:
        return states[0]
    most = max(x.ht.shape[1] for x in states)
    ht = [pad(x.ht, (0, 0, 0, 0, 0, 0, 0, most - x.ht.shape[1])) for x in states]
    others = (torch.cat([getattr(x, y) for x in states]) for y in ("offsets", *_PREVIOUS))
    return LogLinearAttentionState(torch.cat(ht), *others)
