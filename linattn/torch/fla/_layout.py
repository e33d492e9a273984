"""Converts fla's layouts to linattn's and back: [B, T, H, K] tokens, [N, H, K, V] states.

Grouped value heads, HV = H G of them, become (B, H, G, T, V) beside keys (B, H, 1, T, K).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._core.checks import wrong_shape
from ..._states.state_arrays import State
from .._core import conversions
from ._keywords import Given
from ._lent import take
from ._token import STEPS, decode


def run(
    name: str, operator: Callable[..., Any], given: Given, extras: Given, *,
    normalized: bool = False, **options: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """An operator of linattn.torch on fla's arguments, with ``extras`` after q, k and v.

    With ``normalized`` a state is a pair, its second field [N, 1, H, K].  The result has
    ``given["dtype"]``: as in fla, the common one of q, k and v, regardless of gates and strengths.
    """
    q, k, v, cu_seqlens = given["q"], given["k"], given["v"], given.get("cu_seqlens")
    final, reverse = given.get("output_final_state", False), given.get("reverse", False)
    dtype, v_first = given["dtype"], given.get("state_v_first", False)
    s, z = fields(name, given, normalized)
    groups = v.shape[2] // k.shape[2]
    tokens = [q, k, v, *extras.values()]
    options["scale"] = scale_of(given)
    lent = take(s)
    if (
        s is not None and q.shape[1] == 1 and final and operator in STEPS
        and not normalized and cu_seqlens is None
    ):  # fmt: skip
        o, s = decode(operator, tokens, s, groups=groups, v_first=v_first, in_place=lent,
                      options=options)  # fmt: skip
        return o if o.dtype is dtype else o.to(dtype), s
    tokens = [x.flip(1) for x in tokens] if reverse else tokens
    operands = [_heads(x, groups if i > 1 else 1) for i, x in enumerate(tokens)]
    if groups > 1:
        operands[:2] = (x.unsqueeze(2) for x in operands[:2])
    start = None
    if s is not None:
        start = _start(s.mT if v_first else s, z, groups, cu_seqlens, normalized)
    if reverse and cu_seqlens is not None:
        cu_seqlens, start = cu_seqlens[-1] - cu_seqlens.flip(0), _flipped(start)
    o = operator(
        *operands, initial_state=start, return_state=final, cu_seqlens=cu_seqlens, **options
    )
    o, end = o if final else (o, None)
    if reverse:
        o, end = o.flip(-2), end if cu_seqlens is None else _flipped(end)
    o = (o.flatten(1, 2) if groups > 1 else o).transpose(1, 2)
    o = o.contiguous() if o.dtype is dtype else o.to(dtype, memory_format=torch.contiguous_format)
    if end is None:
        return o, None
    s = state_out(end.s, groups, cu_seqlens)
    s = s.mT if v_first else s
    return o, (s, state_out(end.z, groups, cu_seqlens).unsqueeze(1)) if normalized else s


def scale_of(given: Given) -> float:
    """The scale, 1 / sqrt(K) if it is None."""
    scale: float | None = given["scale"]
    return given["k"].shape[-1] ** -0.5 if scale is None else scale


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


def check_tokens(name: str, given: Given, *, grouped: bool = True) -> None:
    """Raise an error unless q and k are [B, T, H, K] and v is [B, T, HV, V].

    HV is H unless they may be ``grouped``.  ``given`` gets the common dtype of the three, and q,
    which RWKV calls r.
    """
    if "r" in given:
        given["q"] = given["r"]
    q, k, v = given["q"], given["k"], given["v"]
    for argument, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.ndim != 4:
            check_tensor(name, argument, x)
            raise wrong_shape(name, argument, x, f"[B, T, H, {'V' if argument == 'v' else 'K'}]")
    if q.shape != k.shape:
        raise wrong_shape(name, "k", k, f"{tuple(q.shape)}, that of q")
    batch, n, heads, _ = k.shape
    rows, length, value_heads, _ = v.shape
    if rows != batch or length != n or heads == 0 or value_heads % heads:
        raise ValueError(
            f"{name}: v has shape {tuple(v.shape)}; expected [{batch}, {n}, HV, V], "
            f"HV a multiple of {heads}, the number of key heads"
        )
    count_sequences(name, "q", q, given.get("cu_seqlens"))
    if not grouped:
        check_shape(name, "v", v, (*k.shape[:3], v.shape[3]), "[B, T, H, V]")
    given["dtype"] = conversions.promotion((q.dtype, k.dtype, v.dtype))


def check_extras(name: str, given: Given, extras: Given, channels: Sequence[str]) -> None:
    """Raise an error unless gates and strengths have the shape that the operator expects."""
    k, v = given["k"], given["v"]
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


def check_axes(name: str, argument: str, x: Any, axes: int, letters: str) -> None:
    """Raise an error unless x is a tensor of so many axes."""
    check_tensor(name, argument, x)
    if x.ndim != axes:
        raise wrong_shape(name, argument, x, letters)


def check_shape(name: str, argument: str, x: Any, expected: tuple[int, ...], letters: str) -> None:
    if isinstance(x, Tensor) and x.shape == expected:
        return
    check_tensor(name, argument, x)
    raise wrong_shape(name, argument, x, f"{tuple(expected)}, {letters}")


def check_letters(
    names: Mapping[str, str], name: str, axes: Mapping[str, str], given: Mapping[str, Any],
    optional: Collection[str] = (), sizes: Mapping[str, int] | None = None,
) -> dict[str, int]:  # fmt: skip
    """The size of each axis; raise an error unless those of one letter have the same size.

    ``axes`` are the letters of each argument's axes, and ``names`` what messages call them.
    """
    known = dict(sizes or {})
    for argument, letters in axes.items():
        x = given[argument]
        if x is None and argument in optional:
            continue
        expected = f"({', '.join(names[c] for c in letters)})"
        check_axes(name, argument, x, len(letters), expected)
        for letter, size in zip(letters, x.shape, strict=True):
            known.setdefault(letter, size)
        check_shape(name, argument, x, tuple(known[c] for c in letters), expected)
    return known


def check_given(name: str, shape: tuple[int, ...], letters: str, **operands: Any) -> None:
    """Raise an error unless the operands that are given, not None, have this shape."""
    for argument, x in operands.items():
        if x is not None:
            check_shape(name, argument, x, shape, letters)


def no_decay(v: Tensor) -> Tensor:
    """Gates [B, T, HV] of a state that does not decay."""
    return torch.zeros((), dtype=torch.float32, device=v.device).expand(v.shape[:3])


def fields(
    name: str, given: Given, normalized: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """s and, where there is one, z of an initial state."""
    state = given.get("initial_state")
    if state is None:
        return None, None
    k, v, cu_seqlens = given["k"], given["v"], given.get("cu_seqlens")
    s, z = state, None
    if isinstance(state, tuple):
        if not normalized or len(state) != 2:
            raise TypeError(
                f"{name}: initial_state is a tuple of {len(state)}; expected a "
                f"{'pair of tensors' if normalized else 'tensor'}"
            )
        s, z = state
    n = count_sequences(name, "v", v, cu_seqlens)
    core, letters = (k.shape[3], v.shape[3]), "[N, HV, K, V]"
    if given.get("state_v_first"):
        core, letters = core[::-1], "[N, HV, V, K]"
    if cu_seqlens is not None:
        letters += ", a state for each sequence of cu_seqlens"
    check_shape(name, "initial_state", s, (n, v.shape[2], *core), letters)
    if z is not None:
        check_shape(name, "initial_state[1]", z, (n, 1, v.shape[2], k.shape[3]), "[N, 1, H, K]")
    return s, z
