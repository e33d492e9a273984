"""Converts fla's layouts to linattn's and back: [B, T, H, K] tokens, [N, H, K, V] states.

Grouped value heads, HV = H G of them, become (B, H, G, T, V) beside keys (B, H, 1, T, K).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._states.state_arrays import State
from ._lent import take
from ._token import STEPS, decode


def run(
    name: str,
    operator: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extras: dict[str, Tensor],
    *,
    scale: float | None,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    dtype: torch.dtype,
    reverse: bool = False,
    state_v_first: bool = False,
    normalized: bool = False,
    **options: Any,
) -> tuple[Tensor, Any]:
    """An operator of linattn.torch on fla's layouts.

    With ``normalized`` a state is a pair, its second field [N, 1, H, K].  ``dtype`` is that of the
    result: as in fla, the common one of q, k and v, regardless of gates and strengths.
    """
    s, z = fields(name, initial_state, k, v, cu_seqlens, normalized, state_v_first)
    groups = v.shape[2] // k.shape[2]
    tokens = [q, k, v, *extras.values()]
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    lent = take(s)
    if (
        s is not None and q.shape[1] == 1 and output_final_state and operator in STEPS
        and not normalized and cu_seqlens is None
    ):  # fmt: skip
        o, s = decode(
            operator, tokens, s, groups=groups, v_first=state_v_first, in_place=lent,
            options={"scale": scale, **options},
        )  # fmt: skip
        return o if o.dtype is dtype else o.to(dtype), s
    tokens = [x.flip(1) for x in tokens] if reverse else tokens
    operands = [_heads(x, groups if i > 1 else 1) for i, x in enumerate(tokens)]
    if groups > 1:
        operands[:2] = (x.unsqueeze(2) for x in operands[:2])
    start = None
    if s is not None:
        start = _start(s.mT if state_v_first else s, z, groups, cu_seqlens, normalized)
    if reverse and cu_seqlens is not None:
        cu_seqlens, start = cu_seqlens[-1] - cu_seqlens.flip(0), _flipped(start)
    o = operator(
        *operands, scale=scale, initial_state=start, return_state=output_final_state,
        cu_seqlens=cu_seqlens, **options,
    )  # fmt: skip
    o, end = o if output_final_state else (o, None)
    if reverse:
        o, end = o.flip(-2), end if cu_seqlens is None else _flipped(end)
    o = (o.flatten(1, 2) if groups > 1 else o).transpose(1, 2)
    o = o.contiguous() if o.dtype is dtype else o.to(dtype, memory_format=torch.contiguous_format)
    if end is None:
        return o, None
    s = state_out(end.s, groups, cu_seqlens)
    s = s.mT if state_v_first else s
    return o, (s, state_out(end.z, groups, cu_seqlens).unsqueeze(1)) if normalized else s


def _heads(x: Tensor, groups: int) -> Tensor:
    """[B, T, H, ...] as (B, H, T, ...), or (B, H, G, T, ...)."""
    x = x.transpose(1, 2)
    return x.unflatten(1, (-1, groups)) if groups > 1 else x


def state_in(x: Tensor, groups: int, cu_seqlens: Tensor | None) -> Tensor:
    """[N, HV, ...] as (N, H, G, ...), or packed (1, H, G, N, ...)."""
    if cu_seqlens is not None:
        x = x.transpose(0, 1).unsqueeze(0)
    return x.unflatten(1, (-1, groups)) if groups > 1 else x


def _start(
    s: Tensor, z: Tensor | None, groups: int, cu_seqlens: Tensor | None, normalized: bool
) -> State:
    s = state_in(s, groups, cu_seqlens)
    if normalized:
        z = torch.zeros_like(s[..., 0]) if z is None else state_in(z[:, 0], groups, cu_seqlens)
    return State(s, z)


def _flipped(state: State | None) -> State | None:
    """The states of packed sequences in reverse order."""
    if state is None:
        return None
    return State(state.s.flip(-3), None if state.z is None else state.z.flip(-2))


def state_out(x: Tensor, groups: int, cu_seqlens: Tensor | None) -> Tensor:
    x = x.flatten(1, 2) if groups > 1 else x
    return x if cu_seqlens is None else x[0].transpose(0, 1).contiguous()


def sequence_bounds(cu_seqlens: Any) -> Tensor:
    """cu_seqlens, a tensor or a list, as a tensor."""
    return cu_seqlens if isinstance(cu_seqlens, Tensor) else torch.as_tensor(cu_seqlens)


def count_sequences(name: str, argument: str, x: Tensor, cu_seqlens: Tensor | None) -> int:
    """N, the number of sequences; raise an error unless packed ones are in a batch of 1."""
    if cu_seqlens is None:
        return x.shape[0]
    if x.shape[0] != 1:
        raise ValueError(
            f"{name}: {argument} has a batch of {x.shape[0]}; expected 1 with cu_seqlens, the "
            "sequences packed along T"
        )
    return len(cu_seqlens) - 1


def check_tokens(name: str, q: Any, k: Any, v: Any, cu_seqlens: Tensor | None) -> None:
    """Raise an error unless q and k are [B, T, H, K] and v is [B, T, HV, V]."""
    for argument, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.ndim != 4:
            check_tensor(name, argument, x)
            raise ValueError(
                f"{name}: {argument} has shape {tuple(x.shape)}; expected [B, T, H, "
                f"{'V' if argument == 'v' else 'K'}]"
            )
    if q.shape != k.shape:
        raise ValueError(
            f"{name}: k has shape {tuple(k.shape)}; expected {tuple(q.shape)}, that of q"
        )
    batch, n, heads, _ = k.shape
    rows, length, value_heads, _ = v.shape
    if rows != batch or length != n or heads == 0 or value_heads % heads:
        raise ValueError(
            f"{name}: v has shape {tuple(v.shape)}; expected [{batch}, {n}, HV, V], "
            f"HV a multiple of {heads}, the number of key heads"
        )
    count_sequences(name, "q", q, cu_seqlens)


def check_extras(
    name: str, k: Tensor, v: Tensor, extras: dict[str, Any], channels: Sequence[str]
) -> None:
    """Raise an error unless gates and strengths have the shape that the operator expects."""
    per_token = v.shape[:3]
    for argument, x in extras.items():
        if argument in channels:
            check_shape(name, argument, x, (*per_token, k.shape[3]), "[B, T, HV, K]")
        elif not (argument == "beta" and isinstance(x, Tensor) and x.shape == v.shape):
            check_shape(name, argument, x, per_token, "[B, T, HV]")


def check_tensor(name: str, argument: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}: {argument} is {'None' if x is None else f'a {type(x).__name__}'}; "
            "expected a tensor"
        )


def check_shape(name: str, argument: str, x: Any, expected: tuple[int, ...], letters: str) -> None:
    if isinstance(x, Tensor) and x.shape == expected:
        return
    check_tensor(name, argument, x)
    raise ValueError(
        f"{name}: {argument} has shape {tuple(x.shape)}; expected {tuple(expected)}, {letters}"
    )


def no_decay(v: Tensor) -> Tensor:
    """Gates [B, T, HV] of a state that does not decay."""
    return torch.zeros((), dtype=torch.float32, device=v.device).expand(v.shape[:3])


def fields(
    name: str, state: Any, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, normalized: bool,
    v_first: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """s and, where there is one, z of an initial state."""
    if state is None:
        return None, None
    s, z = state, None
    if isinstance(state, tuple):
        if not normalized or len(state) != 2:
            raise TypeError(
                f"{name}: initial_state is a tuple of {len(state)}; expected a "
                f"{'pair of tensors' if normalized else 'tensor'}"
            )
        s, z = state
    n = count_sequences(name, "v", v, cu_seqlens)
    core = (v.shape[3], k.shape[3]) if v_first else (k.shape[3], v.shape[3])
    letters = "[N, HV, V, K]" if v_first else "[N, HV, K, V]"
    if cu_seqlens is not None:
        letters += ", a state for each sequence of cu_seqlens"
    check_shape(name, "initial_state", s, (n, v.shape[2], *core), letters)
    if z is not None:
        check_shape(name, "initial_state[1]", z, (n, 1, v.shape[2], k.shape[3]), "[N, 1, H, K]")
    return s, z
