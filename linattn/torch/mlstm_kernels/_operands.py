"""Checks and conversions of the kernels' operands and states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.conversions import promotion, work_dtype
from ..fla._layout import check_letters

#: The axes of operands and states; heads, tokens and widths have the names of mlstm_kernels.
AXES = {"q": "bhnd", "k": "bhnd", "v": "bhnm", "i": "bhn", "f": "bhn"}
STATES = {"c": "bhdm", "n": "bhd", "m": "bh1"}
NAMES = {"b": "B", "h": "NH", "n": "S", "d": "DHQK", "m": "DHV", "1": "1"}
#: The axes of a single token and its state.
TOKEN = {"q": "bhd", "k": "bhd", "v": "bhm", "i": "bh1", "f": "bh1"} | STATES
#: Those of a sequence, whose states are called c_initial and so on.
SEQUENCE = AXES | {f"{name}_initial": letters for name, letters in STATES.items()}


def checked(
    function: str, axes: dict[str, str], given: Sequence[Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """q, k, v, i, f, and c, n and m, in the dtype that is computed in.

    A state that is None is zeros; an error is raised unless the others have the right shapes.
    """
    named = dict(zip(axes, given, strict=True))
    sizes = check_letters(NAMES, function, axes, named, axes.keys() - AXES.keys(), {"1": 1})
    operands, states = given[:5], given[5:]
    dtype = work_dtype(promotion(x.dtype for x in operands[:3]))
    zeros = (
        torch.zeros([sizes[c] for c in letters], dtype=dtype, device=operands[0].device)
        for letters in STATES.values()
    )
    return [*operands], [
        zero if x is None else x.to(dtype) for x, zero in zip(states, zeros, strict=True)
    ]


def refuse_states(function: str, c: Any, n: Any, m: Any, return_last_states: bool) -> None:
    """Raise an error if states are given or asked for."""
    for name, x in (("c", c), ("n", n), ("m", m)):
        if x is not None:
            raise ValueError(f"{function}: {name}_initial is given; expected None")
    if return_last_states:
        raise ValueError(
            f"{function}: return_last_states is {return_last_states!r}; expected False"
        )
