"""From fla's layouts to ours and back: [B, T, H, K] tokens, [N, H, K, V] states.

Grouped value heads, HV = H G of them, become (B, H, G, T, V) beside keys (B, H, 1, T, K).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._state import State
from .. import _tensors

#: Keywords about how a GPU computes, which change no result.
HINTS = ("cu_seqlens_cpu", "chunk_indices", "chunk_size", "disable_recompute")
#: Keywords that ask for what there is not here, unless they have these values.
ABSENT: dict[str, Any] = {
    "cp_context": None,
    "return_intermediate_states": False,
    "use_graph": False,
    "max_num_seqs": None,
    "gv": None,
    "seq_idx": None,
}


def refuse(name: str, given: dict[str, Any]) -> None:
    """An error for keywords that cannot be honoured."""
    for key, value in given.items():
        if key in HINTS:
            continue
        if key not in ABSENT:
            raise TypeError(f"{name}: {key} is no keyword of it")
        if value is not ABSENT[key]:
            raise NotImplementedError(
                f"{name}: {key} is {_short(value)}; expected {ABSENT[key]}, as linattn has no such "
                "thing"
            )


def v_first(name: str, state_v_first: bool, options: dict[str, Any]) -> bool:
    """Whether states are [N, H, V, K], by this name or by the one that it had before."""
    if "transpose_state_layout" not in options:
        return state_v_first
    if state_v_first:
        raise ValueError(f"{name}: state_v_first and transpose_state_layout are both given")
    warnings.warn(
        "transpose_state_layout is deprecated: it is called state_v_first",
        DeprecationWarning,
        stacklevel=3,
    )
    return bool(options.pop("transpose_state_layout"))


def run(
    name: str,
    operator: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extras: dict[str, Tensor],
    *,
    channels: Sequence[str] = (),
    scale: float | None,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    reverse: bool = False,
    state_v_first: bool = False,
    normalized: bool = False,
    **options: Any,
) -> tuple[Tensor, Any]:
    """An operator of linattn.torch on fla's layouts.

    Extras are [B, T, HV], those named in ``channels`` [B, T, HV, K].  With ``normalized`` a state
    is a pair, the second of it [N, 1, H, K].  The result has the dtype that q, k and v have
    together: gates and strengths have no say in it, as in fla.
    """
    if cu_seqlens is not None and not isinstance(cu_seqlens, Tensor):
        cu_seqlens = torch.as_tensor(cu_seqlens)
    _check(name, q, k, v, extras, channels, cu_seqlens)
    s, z = _fields(name, initial_state, k, v, cu_seqlens, normalized, state_v_first)
    groups = v.shape[2] // k.shape[2]
    dtype = _tensors.promotion(x.dtype for x in (q, k, v))
    if scale is None:
        scale = k.shape[-1] ** -0.5
    tokens = [q, k, v, *extras.values()]
    tokens = [x.flip(1) for x in tokens] if reverse else tokens
    operands = [_heads(x, groups if i > 1 else 1) for i, x in enumerate(tokens)]
    if groups > 1:
        operands = [x.unsqueeze(2) for x in operands[:2]] + operands[2:]
    if s is not None:
        s = s.mT if state_v_first else s
        s = _state_in(s, groups, cu_seqlens)
        if normalized:
            z = torch.zeros_like(s[..., 0]) if z is None else _state_in(z[:, 0], groups, cu_seqlens)
    if reverse and cu_seqlens is not None:
        cu_seqlens = cu_seqlens[-1] - cu_seqlens.flip(0)
        s, z = (x if x is None else x.flip(-3 + i) for i, x in enumerate((s, z)))
    start = None if s is None else State(s, z)
    o = operator(
        *operands, scale=scale, initial_state=start, return_state=output_final_state,
        cu_seqlens=cu_seqlens, **options,
    )  # fmt: skip
    o, end = o if output_final_state else (o, None)
    if reverse:
        o = o.flip(-2)
        if cu_seqlens is not None and end is not None:
            end = State(end.s.flip(-3), None if end.z is None else end.z.flip(-2))
    o = (o.flatten(1, 2) if groups > 1 else o).transpose(1, 2)
    o = o.contiguous() if o.dtype is dtype else o.to(dtype, memory_format=torch.contiguous_format)
    if end is None:
        return o, None
    s = _state_out(end.s, groups, cu_seqlens)
    s = s.mT.contiguous() if state_v_first else s
    if not normalized:
        return o, s
    return o, (s, _state_out(end.z, groups, cu_seqlens).unsqueeze(1))


def _heads(x: Tensor, groups: int) -> Tensor:
    """[B, T, H, ...] as (B, H, T, ...), or (B, H, G, T, ...)."""
    x = x.transpose(1, 2)
    return x.unflatten(1, (-1, groups)) if groups > 1 else x


def _state_in(x: Tensor, groups: int, cu_seqlens: Tensor | None) -> Tensor:
    """[N, HV, ...] as (N, H, G, ...), or packed (1, H, G, N, ...)."""
    if cu_seqlens is not None:
        x = x.transpose(0, 1).unsqueeze(0)
    return x.unflatten(1, (-1, groups)) if groups > 1 else x


def _state_out(x: Tensor, groups: int, cu_seqlens: Tensor | None) -> Tensor:
    x = x.flatten(1, 2) if groups > 1 else x
    return x if cu_seqlens is None else x[0].transpose(0, 1).contiguous()


def _check(
    name: str, q: Any, k: Any, v: Any, extras: dict[str, Any], channels: Sequence[str],
    cu_seqlens: Tensor | None,
) -> None:  # fmt: skip
    for argument, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, argument, x)
        if x.ndim != 4:
            raise ValueError(
                f"{name}: {argument} has shape {tuple(x.shape)}; expected [B, T, H, "
                f"{'V' if argument == 'v' else 'K'}]"
            )
    if q.shape != k.shape:
        raise ValueError(
            f"{name}: k has shape {tuple(k.shape)}; expected {tuple(q.shape)}, that of q"
        )
    if v.shape[:2] != k.shape[:2] or k.shape[2] == 0 or v.shape[2] % k.shape[2]:
        raise ValueError(
            f"{name}: v has shape {tuple(v.shape)}; expected [{k.shape[0]}, {k.shape[1]}, HV, V], "
            f"HV a multiple of {k.shape[2]} heads of keys"
        )
    for argument, x in extras.items():
        if argument in channels:
            check_shape(name, argument, x, (*v.shape[:3], k.shape[3]), "[B, T, HV, K]")
        elif not (argument == "beta" and isinstance(x, Tensor) and x.shape == v.shape):
            check_shape(name, argument, x, v.shape[:3], "[B, T, HV]")
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(
            f"{name}: q has a batch of {q.shape[0]}; expected 1 with cu_seqlens, the sequences "
            "one after another along T"
        )


def check_tensor(name: str, argument: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}: {argument} is {'None' if x is None else f'a {type(x).__name__}'}; "
            "expected a tensor"
        )


def check_shape(name: str, argument: str, x: Any, expected: Sequence[int], letters: str) -> None:
    check_tensor(name, argument, x)
    if x.shape != tuple(expected):
        raise ValueError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected {tuple(expected)}, {letters}"
        )


def no_decay(v: Any) -> Any:
    """Gates [B, T, HV] of a state that does not decay."""
    if not isinstance(v, Tensor):
        return None  # the check of v comes first
    return torch.zeros((), dtype=torch.float32, device=v.device).expand(v.shape[:3])


def _fields(
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
    n = v.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    core = (v.shape[3], k.shape[3]) if v_first else (k.shape[3], v.shape[3])
    letters = "[N, HV, V, K]" if v_first else "[N, HV, K, V]"
    if cu_seqlens is not None:
        letters += ", a state for each sequence of cu_seqlens"
    check_shape(name, "initial_state", s, (n, v.shape[2], *core), letters)
    if z is not None:
        check_shape(name, "initial_state[1]", z, (n, 1, v.shape[2], k.shape[3]), "[N, 1, H, K]")
    return s, z


def _short(x: Any) -> str:
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
