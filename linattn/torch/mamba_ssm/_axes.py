"""Checks of operands by the letters of their axes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..fla._layout import check_letters as check_letters_named
from ..fla._layout import check_tensor

NAMES = {
    "b": "batch", "t": "seqlen", "r": "mimo_rank", "g": "nheads_qk", "h": "nheads",
    "n": "headdim_qk", "p": "headdim_v", "s": "headdim_angles", "i": "sequences",
}  # fmt: skip


check_letters = functools.partial(check_letters_named, NAMES)

TOKENS = {"V": "bthp", "ADT": "bht", "DT": "bht", "Trap": "bht", "Angles": "bths"}
STATES = {"angles": "ihs", "states": "ihpn", "keys": "ihn", "values": "ihp"}


def check_tokens(
    name: str, axes: Mapping[str, str], given: Mapping[str, Any], optional: tuple[str, ...],
    cu_seqlens: Tensor | None,
) -> dict[str, int]:  # fmt: skip
    """The sizes of Mamba-3's operands, and of its sequences; raise an error if some differ."""
    sizes = check_letters(name, {**TOKENS, **axes}, given, optional)
    heads, groups, width, n = (sizes[c] for c in "hgnt")
    if not groups or heads % groups:
        raise ValueError(
            f"{name}: Q has {groups} heads; expected a divisor of {heads}, the number of heads of V"
        )
    if width % 2 or 2 * sizes["s"] > width:
        raise ValueError(
            f"{name}: Angles has {sizes['s']} numbers a head, and Q {width} channels; expected an "
            "even number of channels, and at most half as many angles"
        )
    if not n:
        raise ValueError(f"{name}: seqlen is 0; expected at least 1")
    if cu_seqlens is None:
        return sizes | {"i": sizes["b"]}
    check_bounds(name, cu_seqlens, sizes["b"], n)
    return sizes | {"i": len(cu_seqlens) - 1}


def check_bounds(name: str, cu_seqlens: Any, batch: int, n: int) -> None:
    """Raise an error unless these are bounds of sequences in a single row of n tokens."""
    check_tensor(name, "cu_seqlens", cu_seqlens)
    if batch != 1 or int(cu_seqlens[-1]) != n:
        raise ValueError(
            f"{name}: cu_seqlens ends at {int(cu_seqlens[-1])}, with batch {batch} and seqlen {n}; "
            f"expected {n}, and batch 1"
        )


def check_states(name: str, states: Any, sizes: Mapping[str, int]) -> None:
    """Raise an error unless these are the four states that Mamba-3 starts from."""
    if not isinstance(states, (tuple, list)) or len(states) != len(STATES):
        raise ValueError(
            f"{name}: Input_States is a {type(states).__name__}; expected a tuple of "
            f"{', '.join(STATES)}"
        )
    axes = {f"Input_States, {x}": letters for x, letters in STATES.items()}
    check_letters(name, axes, dict(zip(axes, states, strict=True)), sizes=sizes)
