"""Keywords of fla's that linattn ignores or does not support."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from .._core.seq_idx import bounds_of

Given = dict[str, Any]  #: the arguments of a call by name

#: Keywords that tune GPU kernels and change no result: their annotations and defaults.
HINTS = {
    "checkpoint_level": ("int", 2),
    "chunk_indices": ("Tensor | None", None),
    "chunk_size": ("int | None", None),
    "cu_seqlens_cpu": ("Tensor | None", None),
    "disable_recompute": ("bool", False),
    "solve_tril_precision": ("str | None", None),
}
#: Keywords that linattn does not support, and the values that leave them off.
ABSENT = {
    "cp_context": ("Any", None),
    "return_intermediate_states": ("bool", False),
    "use_graph": ("bool", False),
    "max_num_seqs": ("int | None", None),
    "seq_idx": ("Tensor | None", None),
    "output_attentions": ("bool", False),
}


def refuse(name: str, more: Given) -> None:
    """Raise an error for keywords that ask for something unsupported, and for unknown ones."""
    for key, value in more.items():
        if key in HINTS:
            continue
        if key not in ABSENT:
            raise TypeError(f"{name}: unexpected keyword {key}")
        if value is not ABSENT[key][1]:
            raise NotImplementedError(
                f"{name}: {key} is {_short(value)}; expected {ABSENT[key][1]}, as linattn does not "
                "support it"
            )


def states_v_first(name: str, given: Given, more: Given) -> None:
    """Take the former name of state_v_first, which says whether states are [N, H, V, K]."""
    if "transpose_state_layout" not in more:
        return
    if given.get("state_v_first"):
        raise ValueError(f"{name}: state_v_first and transpose_state_layout are both given")
    warnings.warn(
        "transpose_state_layout is deprecated: it is called state_v_first",
        DeprecationWarning,
        stacklevel=4,
    )
    given["state_v_first"] = bool(more.pop("transpose_state_layout"))


def take_packing(given: Given, more: Given) -> None:
    """Take cu_seqlens by the names by which Transformers' models hand them on."""
    bounds, seq_idx = given.pop("cu_seq_lens_q"), more.pop("seq_idx")
    if bounds is None and seq_idx is not None:
        bounds = bounds_of(seq_idx)
    if given["cu_seqlens"] is None:
        given["cu_seqlens"] = bounds


def _short(x: Any) -> str:
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
