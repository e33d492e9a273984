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
    given: dict[str, bool]
    own: Mapping[str, bool] = MappingProxyType({})  #: what the function takes besides


_STATES = {"output_final_state": True}
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
    Reference("hgrn", "naive_recurrent_hgrn", "fused_recurrent_hgrn", "xy", _STATES),
    Reference("hgrn", "naive_recurrent_hgrn", "chunk_hgrn", "xy", _STATES),
)  # fmt: skip


def operands(letters, batch=2, n=128, heads=2, width=16):
    """Operands by letter: unit q and k, v, log decays per token (g) or channel (G), beta (b)."""
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
        "x": lambda: normal(heads * width),
        "y": lambda: F.logsigmoid(normal(heads * width)),
    }
    return [made[x]().requires_grad_() for x in letters]
