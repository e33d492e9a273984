"""fla's modules on CPUs, in PyTorch: norms, gates, rotary embeddings, short convolutions, losses.

Layers have fla's names, parameters and buffers, so that checkpoints load, and so have functions.
As fla's kernels do, they compute in float32 and round once.  ``TokenShift``, bit-linear layers,
long convolutions, feature maps and parallel styles are not here.
"""

from __future__ import annotations

from typing import Any

from ..._core.made_modules import make_modules
from .. import convolution as _convolution
from . import (
    _activations,
    _fused_norm_gate,
    _layernorm,
    _loss_layers,
    _losses,
    _mixing,
    _mlp,
    _other_norms,
    _rotary,
)
from ._fused_norm_gate import (
    FusedLayerNormGated,
    FusedLayerNormSwishGate,
    FusedLayerNormSwishGateLinear,
    FusedRMSNormGated,
    FusedRMSNormSwishGate,
    FusedRMSNormSwishGateLinear,
)
from ._layernorm import (
    GroupNorm,
    GroupNormLinear,
    LayerNorm,
    LayerNormLinear,
    RMSNorm,
    RMSNormLinear,
)
from ._loss_layers import FusedCrossEntropyLoss, FusedKLDivLoss, FusedLinearCrossEntropyLoss
from ._mlp import GatedMLP
from ._other_norms import L2Norm
from ._rotary import RotaryEmbedding

ShortConvolution = _convolution.ShortConvolution

__all__ = [
    "FusedCrossEntropyLoss", "FusedKLDivLoss", "FusedLayerNormGated", "FusedLayerNormSwishGate",
    "FusedLayerNormSwishGateLinear", "FusedLinearCrossEntropyLoss", "FusedRMSNormGated",
    "FusedRMSNormSwishGate", "FusedRMSNormSwishGateLinear", "GatedMLP", "GroupNorm",
    "GroupNormLinear", "L2Norm", "LayerNorm", "LayerNormLinear", "RMSNorm", "RMSNormLinear",
    "RotaryEmbedding", "ShortConvolution",
]  # fmt: skip


def _of(module: Any, *names: str) -> dict[str, Any]:
    """These names of a module, or all that are public."""
    return {name: getattr(module, name) for name in names or module.__all__}


def _layers(module: Any) -> dict[str, Any]:
    """Those of the names that are classes."""
    return {name: x for name, x in _of(module).items() if isinstance(x, type)}


#: fla's modules, by their present names and their former ones, and what is in them.
_CONTENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("activations activations.ops", _activations.PUBLIC),
    ("causal_conv1d causal_conv1d.ops conv conv.causal_conv1d conv.short_conv convolution",
     _of(_convolution)),
    ("fused_cross_entropy fused_cross_entropy.ops",
     _of(_loss_layers, "FusedCrossEntropyLoss") | _of(_losses, "cross_entropy_loss")),
    ("fused_kl_div fused_kl_div.ops", _of(_loss_layers, "FusedKLDivLoss", "fused_kl_div_loss")),
    ("fused_linear_cross_entropy fused_linear_cross_entropy.ops",
     _of(_loss_layers, "FusedLinearCrossEntropyLoss")
     | {"fused_linear_cross_entropy_loss": _losses.fused_linear_cross_entropy}),
    ("mlp", _of(_mlp)),
    ("norm", _layers(_fused_norm_gate) | _layers(_layernorm) | _layers(_other_norms)),
    ("norm.fused_norm_gate fused_norm_gate", _of(_fused_norm_gate)),
    ("norm.l2norm l2norm", _of(_other_norms, "L2Norm", "l2_norm", "l2norm")),
    ("norm.layernorm layernorm", _of(_layernorm)),
    ("norm.layernorm_gated layernorm_gated",
     _of(_other_norms, "LayerNormGated", "RMSNormGated", "layernorm_fn", "rmsnorm_fn")),
    ("rotary rotary.ops", _of(_rotary)),
    ("token_shift", {"token_shift": _mixing.shift_tokens}),
)  # fmt: skip


def _made() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for paths, values in _CONTENTS:
        for path in paths.split():
            made.setdefault(path, {}).update(values)
    return made


make_modules(__name__, _made())
