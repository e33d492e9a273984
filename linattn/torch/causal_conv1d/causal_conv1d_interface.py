"""The convolution over whole sequences, and over further tokens with a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._core.checks import wrong_shape
from .._core.conv_update import moved_on
from .._core.seq_idx import at_first, numbered, packing
from ..fla._layout import check_axes, check_given, check_shape, check_tensor
from ..operators import causal_conv1d

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]

#: linattn's activations by the package's names.
ACTIVATIONS = {None: None, "silu": "silu", "swish": "silu"}


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
    *,
    cu_seq_lens_q: Tensor | None = None,
) -> Any:
    """Causal convolution of each channel with its own short filter, channels first.

    Parameters
    ----------
    x : Tensor, (batch, dim, seqlen)
        Tokens.
    weight : Tensor, (dim, width)
        The filter of each channel; its last number multiplies the current token.
    bias : Tensor, (dim,), optional
        Added to each channel.
    seq_idx : Tensor of int32, (batch, seqlen), optional
        The sequence of each token, whose tokens follow one another.  The output of tokens with
        a negative number, which are padding, is 0.
    initial_states : Tensor, (batch, dim, width - 1), optional
        The inputs before the first token, oldest first.  With ``seq_idx`` they belong to the
        first sequence of each row.
    return_final_states : bool
        Also return the last width - 1 inputs.
    final_states_out : Tensor, (batch, dim, width - 1), optional
        Where to write them, with ``return_final_states``.
    activation : {'silu', 'swish', None}
        Applied to the sum.
    cu_seq_lens_q : Tensor of int, (sequences + 1,), optional
        In place of ``seq_idx``, the bounds of the sequences of a single row, as Transformers'
        models hand them on.

    Returns
    -------
    out : Tensor, (batch, dim, seqlen)
        Of the dtype of x.
    final_states : Tensor, (batch, dim, width - 1)
        Only with ``return_final_states``.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match, activation is unknown, or both seq_idx and return_final_states are
        given.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.causal_conv1d import causal_conv1d_fn
    >>> x, weight = torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[0.5, 1.0]])
    >>> causal_conv1d_fn(x, weight)
    tensor([[[1.0000, 2.5000, 5.0000]]])
    """
    name = "causal_conv1d_fn"
    batch, dim = _check(name, x, weight, bias, activation)
    options: dict[str, Any] = {"activation": ACTIVATIONS[activation]}
    core = batch, dim, weight.shape[1] - 1
    check_given(name, core, "(batch, dim, width - 1)", initial_states=initial_states)
    if seq_idx is None and cu_seq_lens_q is not None:
        seq_idx = numbered(name, cu_seq_lens_q, batch, x.shape[2])
    if seq_idx is not None:
        if return_final_states:
            raise ValueError(f"{name}: seq_idx and return_final_states are both given")
        o = _packed(name, x, weight, bias, seq_idx, initial_states, options)
        return like_channels_first(o, x)
    options |= {"initial_state": initial_states, "return_state": return_final_states}
    result: Any = causal_conv1d(x.mT, weight, bias, **options)
    if not return_final_states:
        return like_channels_first(result, x)
    o, states = result
    states = states.to(x.dtype)
    if final_states_out is not None:
        check_shape(name, "final_states_out", final_states_out, states.shape, "(batch, dim, width")
        states = final_states_out.copy_(states)
    return like_channels_first(o, x), states


def _check(name: str, x: Any, weight: Any, bias: Any, activation: Any) -> tuple[int, int]:
    """Raise an error unless x is (batch, dim, seqlen) and the others fit; return batch and dim."""
    check_axes(name, "x", x, 3, "three axes, (batch, dim, seqlen)")
    batch, dim, _ = x.shape
    check_tensor(name, "weight", weight)
    if weight.ndim != 2 or weight.shape[0] != dim or not weight.shape[1]:
        raise wrong_shape(name, "weight", weight, f"({dim}, width), (dim, width)")
    check_given(name, (dim,), "(dim,)", bias=bias)
    if activation not in ACTIVATIONS:
        raise ValueError(f"{name}: activation is {activation!r}; expected None, 'silu' or 'swish'")
    return batch, dim


def like_channels_first(o: Tensor, x: Tensor) -> Tensor:
    """The result (batch, seqlen, dim) as x is: channels first, and contiguous if x is."""
    o = o.to(x.dtype).mT
    return o.contiguous() if x.is_contiguous() else o


def _packed(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Any,
    initial_states: Tensor | None, options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The result (batch, seqlen, dim) of sequences that do not see one another."""
    batch, dim, n = x.shape
    packed = packing(name, seq_idx, batch, n)
    if packed is None:
        return causal_conv1d(x.mT, weight, bias, **options)
    tokens = x.mT.reshape(1, batch * n, dim)
    start = None if initial_states is None else at_first(initial_states, packed)[None]
    o = causal_conv1d(
        tokens, weight, bias, cu_seqlens=packed.bounds, initial_state=start, **options
    )
    padding = seq_idx < 0
    o = o.view(batch, n, dim)
    return o.masked_fill(padding[..., None], 0) if padding.any() else o


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """The convolution of one or more tokens, which moves the state on in place.

    Parameters
    ----------
    x : Tensor, (batch, dim) or (batch, dim, seqlen)
        Tokens.
    conv_state : Tensor, (batch, dim, state_len)
        The inputs before them, of at least width - 1 tokens; updated in place.
    weight : Tensor, (dim, width)
        The filter of each channel.
    bias : Tensor, (dim,), optional
        Added to each channel.
    activation : {'silu', 'swish', None}
        Applied to the sum.
    cache_seqlens : Tensor of int32, (batch,), optional
        The number of tokens before these.  The state is then a circular buffer, where token t is
        at t modulo state_len.
    conv_state_indices : Tensor of int32, (batch,), optional
        The rows of conv_state, which may have any number, that belong to those of x.  The output
        of rows with a negative index, which are padding, is 0.

    Returns
    -------
    out : Tensor
        Of the shape and dtype of x.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match, or activation is unknown.

    Notes
    -----
    Without gradients, one token of the dtype of the filters is computed without a copy of the
    state, which may be float32 or have 16 bits, and whose rows are found by their indices unless
    one is negative.  Gradients flow through the state.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.causal_conv1d import causal_conv1d_update
    >>> state, weight = torch.tensor([[[2.0, 4.0]]]), torch.tensor([[0.5, 1.0]])
    >>> causal_conv1d_update(torch.tensor([[8.0]]), state, weight), state
    (tensor([[10.]]), tensor([[[4., 8.]]]))
    """
    name = "causal_conv1d_update"
    check_tensor(name, "x", x)
    if cache_seqlens is None and (x.ndim == 2 or x.shape[2:] == (1,)):
        token = x if x.ndim == 2 else x[..., 0]
        o: Any = moved_on(
            token, conv_state, weight, bias, ACTIVATIONS.get(activation, activation),
            conv_state_indices,
        )  # fmt: skip
        if o is not NotImplemented:
            return o if x.ndim == 2 else o[..., None]
    tokens = x.unsqueeze(-1) if x.ndim == 2 else x
    batch, dim = _check(name, tokens, weight, bias, activation)
    rows = None
    if conv_state_indices is not None:
        check_shape(name, "conv_state_indices", conv_state_indices, (batch,), "(batch,)")
        rows = conv_state_indices.long()
    _check_state(name, conv_state, None if rows is not None else batch, dim, weight.shape[1])
    check_given(name, (batch,), "(batch,)", cache_seqlens=cache_seqlens)
    state = conv_state if rows is None else conv_state[rows.clamp(min=0)]
    if cache_seqlens is not None:
        o = _circular(tokens, state, weight, bias, ACTIVATIONS[activation], cache_seqlens)
    else:
        o = shifted(tokens, state, weight, bias, ACTIVATIONS[activation])
    if rows is not None:
        real = rows >= 0
        conv_state[rows[real]] = state[real]
        o = o.masked_fill(~real[:, None, None], 0)
    return o.to(x.dtype).view(x.shape)


def _check_state(name: str, state: Any, batch: int | None, dim: int, width: int) -> None:
    check_tensor(name, "conv_state", state)
    shape = state.shape
    known = state.ndim == 3 and (batch is None or shape[0] == batch) and shape[1] == dim
    if not known or shape[2] < width - 1:
        rows = "rows" if batch is None else batch
        raise ValueError(
            f"{name}: conv_state has shape {tuple(shape)}; expected ({rows}, {dim}, state_len), "
            f"state_len at least {width - 1}"
        )


def shifted(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    """`causal_conv1d_update` for x (batch, dim, seqlen), without checks of shapes.

    The state loses its oldest inputs.
    """
    length, n = state.shape[-1], x.shape[-1]
    extra = length - weight.shape[-1] + 1
    if n == 1:
        o = moved_on(x[..., 0], state, weight, bias, activation)
        if o is not NotImplemented:
            return o[..., None]
    inputs = torch.cat([state, x], -1)
    o = causal_conv1d(
        inputs[..., length:].mT, weight, bias, activation=activation,
        initial_state=inputs[..., extra:length],
    )  # fmt: skip
    state.copy_(inputs[..., n:])
    return o.to(x.dtype).mT


def _circular(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None,
    before: Tensor,
) -> Tensor:  # fmt: skip
    """The result, as x; token t of a row is at t modulo the length of the state."""
    length, width, n = state.shape[-1], weight.shape[-1], x.shape[-1]
    rows, tokens = torch.arange(len(x))[:, None], state.mT
    at = (before.long()[:, None] + torch.arange(1 - width, n)) % length
    o = causal_conv1d(
        x.mT, weight, bias, activation=activation, initial_state=tokens[rows, at[:, : width - 1]].mT
    )
    kept = min(n, length)
    tokens[rows, at[:, width - 1 + n - kept :]] = x.mT[:, n - kept :].to(state.dtype)
    return o.mT


# --- the same in plain PyTorch, for tests ---------------------------------------------------------


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """`causal_conv1d_fn` as sums over the taps of each filter, in the dtype of weight."""
    batch, dim = _check("causal_conv1d_ref", x, weight, bias, activation)
    past = weight.shape[1] - 1
    before = x.new_zeros(batch, dim, past) if initial_states is None else initial_states
    inputs = torch.cat([before, x], -1)
    windows = inputs.to(weight.dtype).unfold(-1, past + 1, 1)
    o = (windows * weight[:, None]).sum(-1)
    o = o if bias is None else o + bias[:, None]
    o = (o if activation is None else F.silu(o)).to(x.dtype)
    if not return_final_states:
        return o
    states = inputs[..., inputs.shape[-1] - past :]
    return o, states if final_states_out is None else final_states_out.copy_(states)


def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor:
    """`causal_conv1d_update` by `causal_conv1d_ref`; the state is updated in place."""
    name = "causal_conv1d_update_ref"
    tokens = x.unsqueeze(-1) if x.ndim == 2 else x
    batch, dim = _check(name, tokens, weight, bias, activation)
    _check_state(name, conv_state, batch, dim, weight.shape[1])
    length, n, state = conv_state.shape[-1], tokens.shape[-1], conv_state.mT
    rows, order = torch.arange(batch)[:, None], torch.arange(length)[None]  # oldest first
    if cache_seqlens is not None:
        order = (order + cache_seqlens[:, None].long()) % length
    inputs = torch.cat([state[rows, order].mT, tokens], -1)
    before = inputs[..., length + 1 - weight.shape[1] : length]
    o = causal_conv1d_ref(inputs[..., length:], weight, bias, before, activation=activation)
    if cache_seqlens is not None:  # token t is at t modulo the length
        order = (order + n) % length
    state[rows, order] = inputs[..., n:].mT.to(state.dtype)
    return o.to(x.dtype).view(x.shape)
