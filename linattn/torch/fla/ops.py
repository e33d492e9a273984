"""``fla.ops``: the functions of `linattn.torch.fla` in the modules in which fla has them.

``from linattn.torch.fla.ops.gla import chunk_gla``, or from ``linattn.torch.fla.ops.gla.chunk``.
"""

from __future__ import annotations

import re
from typing import Any

from .._core.made_modules import make_modules
from . import _sequences
from ._gates import fused_gdn_gate, fused_kda_gate
from ._rules import FUNCTIONS
from ._states import LogLinearAttentionState
from .modules import _mixing

_FORM = re.compile(r"(chunk|fused_recurrent|fused_chunk|parallel)_(\w+)")
#: The folders of families that are not called as these are.
_FOLDERS = {
    "dplr_delta_rule": "generalized_delta_rule.dplr",
    "gdn": "gated_delta_rule",
    "iplr_delta_rule": "generalized_delta_rule.iplr",
}
#: What is not named after a form and a family.
_OTHERS: dict[str, dict[str, Any]] = {
    "gated_delta_rule.gate": {"fused_gdn_gate": fused_gdn_gate},
    "kda.gate": {"fused_kda_gate": fused_kda_gate},
    "log_linear_attn.chunk": {"LogLinearAttentionState": LogLinearAttentionState},
    "mesa_net.decoding_one_step": {
        "mesa_net_decoding_one_step": FUNCTIONS["mesa_net_decoding_one_step"]
    },
    "rwkv7.fused_addcmul": {"fused_addcmul_rwkv7": _mixing.fused_addcmul_rwkv7},
    "rwkv7.fused_k_update": {"fused_k_rwkv7": _mixing.k_update_rwkv7},
    "rwkv7.fused_recurrent": {"fused_mul_recurrent_rwkv7": FUNCTIONS["fused_mul_recurrent_rwkv7"]},
    "rwkv7.gate_output_correction": {"gate_output_correction": _mixing.gate_output_correction},
    "utils.index": {name: getattr(_sequences, name) for name in _sequences.OF_INDEX},
}


def _files() -> dict[str, dict[str, Any]]:
    """By the name of fla's file, what of it is here."""
    files = {name: dict(values) for name, values in _OTHERS.items()}
    for name, function in FUNCTIONS.items():
        if match := _FORM.fullmatch(name):
            form, family = match.groups()
            files.setdefault(f"{_FOLDERS.get(family, family)}.{form}", {})[name] = function
    return files


def _with_folders(files: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The files and their folders, which have all that is in them."""
    made: dict[str, dict[str, Any]] = {}
    for name, values in files.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:i]), {}).update(values)
    return made


make_modules(__name__, _with_folders(_files()))
globals().update(FUNCTIONS)
__all__ = sorted(FUNCTIONS)
