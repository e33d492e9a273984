"""fla's naive reference implementations, paired with the functions that take the same operands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Reference(NamedTuple):
    """A function of a package of fla.ops, and one of that package's module ``naive``."""

    package: str
    naive: str
    function: str
    operands: str  #: letters of `operands`
    given: Mapping[str, bool]
    alone: Mapping[str, bool] = MappingProxyType({})  #: options of the function alone


_STATES = {"output_final_state": True}
_AS_IS = {"use_qk_l2norm_in_kernel": False}
REFERENCES = (
    Reference("gla", "naive_recurrent_gla", "chunk_gla", "qkvG", _STATES),
    Reference("gla", "naive_recurrent_gla", "fused_recurrent_gla", "qkvG", _STATES),
    Reference("linear_attn", "naive_recurrent_linear_attn", "chunk_linear_attn", "qkv",
              {"normalize": False} | _STATES),
    Reference("simple_gla", "naive_chunk_simple_gla", "chunk_simple_gla", "qkvg", _STATES),
    Reference("gated_delta_rule", "naive_chunk_gated_delta_rule", "chunk_gated_delta_rule",
              "qkvgb", _STATES),
    Reference("kda", "naive_chunk_kda", "chunk_kda", "qkvGb", _STATES),
    Reference("kda", "naive_recurrent_kda", "fused_recurrent_kda", "qkvGb", _STATES),
    Reference("momentum_delta_rule", "recurrent_momentum_delta_rule_ref",
              "fused_recurrent_momentum_delta_rule", "qkvggkbb", _STATES,
              {"use_qk_l2norm_in_kernel": False, "use_p_times_alpha": False}),
    Reference("gsa", "naive_recurrent_gsa", "chunk_gsa", "qkvSG", _STATES),
    Reference("gsa", "naive_recurrent_gsa", "fused_recurrent_gsa", "qkvSG", _STATES),
    Reference("precond_kda", "naive_recurrent_precond_kda", "chunk_precond_kda", "qkvGgbb",
              _STATES, _AS_IS),
    Reference("precond_kda", "naive_recurrent_precond_kda", "fused_recurrent_precond_kda",
              "qkvGgbb", _STATES, _AS_IS),
    Reference("hgrn", "naive_recurrent_hgrn", "fused_recurrent_hgrn", "xy", _STATES),
    Reference("hgrn", "naive_recurrent_hgrn", "chunk_hgrn", "xy", _STATES),
)  # fmt: skip


def operands(letters, batch=2, n=128, heads=2, width=16):
    """By letter: q, k of norm 1, v, log decays of tokens g and channels G, strengths b, slots S."""
    source = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(batch, n, *shape, generator=source)

    made = {
        "q": lambda: F.normalize(normal(heads, width), dim=-1),
        "k": lambda: F.normalize(normal(heads, width), dim=-1),
        "v": lambda: normal(heads, width),
        "g": lambda: F.logsigmoid(normal(heads)),
        "G": lambda: F.logsigmoid(normal(heads, width)),
        "b": lambda: normal(heads).sigmoid(),
        "S": lambda: normal(heads, width).softmax(-1),
        "x": lambda: normal(heads * width),
        "y": lambda: F.logsigmoid(normal(heads * width)),
    }
    return [made[x]().requires_grad_() for x in letters]
