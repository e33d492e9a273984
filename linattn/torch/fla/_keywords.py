"""Keywords of fla's that linattn ignores or does not support."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

Given = dict[str, Any]  #: the arguments of a call by name

#: Keywords that tune GPU kernels and change no result.
HINTS = (
    "checkpoint_level", "chunk_indices", "chunk_size", "cu_seqlens_cpu", "disable_recompute",
    "solve_tril_precision",
)  # fmt: skip
#: Keywords that linattn does not support, and the values that leave them off.
ABSENT: Given = {
    "cp_context": None,
    "return_intermediate_states": False,
    "use_graph": False,
    "max_num_seqs": None,
    "seq_idx": None,
    "output_attentions": False,
}


def refuse(name: str, more: Given) -> None:
    """Raise an error for keywords that ask for something unsupported, and for unknown ones."""
    for key, value in more.items():
        if key in HINTS:
            continue
        if key not in ABSENT:
            raise TypeError(f"{name}: unexpected keyword {key}")
        if value is not ABSENT[key]:
            raise NotImplementedError(
                f"{name}: {key} is {_short(value)}; expected {ABSENT[key]}, as linattn does not "
                "support it"
            )


def states_v_first(name: str, given: Given, more: Given) -> bool:
    """Whether states are [N, H, V, K], by this keyword or by its former name."""
    declared = "transpose_state_layout" if "transpose_state_layout" in given else "state_v_first"
    state_v_first: bool = given.get(declared, False)
    if "transpose_state_layout" not in more:
        return state_v_first
    if state_v_first:
        raise ValueError(f"{name}: state_v_first and transpose_state_layout are both given")
    warnings.warn(
        "transpose_state_layout is deprecated: it is called state_v_first",
        DeprecationWarning,
        stacklevel=4,
    )
    return bool(more.pop("transpose_state_layout"))


def _short(x: Any) -> str:
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
