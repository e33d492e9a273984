"""The functions of fla that are replaced, by where they are defined."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import fla
from ..fla import _gates as gates
from ..fla.modules import _activations as activations
from ..fla.modules import _losses as losses
from ..fla.modules import _mixing as mixing
from ..fla.modules import _norms as norms
from ..fla.modules import _other_norms as other_norms
from ..mamba_ssm.ops.cute.mamba3.mamba3_step_fn import mamba3_step_fn
from ..mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from ..mamba_ssm.ops.tilelang.mamba3.mamba3_mimo import mamba3_mimo
from ..mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step import apply_rotary_qk_inference_fwd
from ..mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined
from ..mamba_ssm.ops.triton.selective_state_update import selective_state_update
from ..mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
)
from . import _cache as cache
from . import _mamba as mamba
from . import _mamba3 as mamba3


class StandIn(NamedTuple):
    """A function of linattn and the one of fla for which it stands."""

    module: str
    name: str  #: in the module; an autograd function's is that of its method ``apply``
    function: Callable[..., Any]

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"


_LAYERNORM = "fla.modules.norm.layernorm"
_NORM_GATE = "fla.modules.norm.fused_norm_gate"
_ACTIVATIONS = "fla.modules.activations.ops"

MODULES = (
    StandIn(_LAYERNORM, "LayerNormFunction.apply", norms.layer_norm),
    StandIn(_LAYERNORM, "LayerNormLinearFunction.apply", norms.layer_norm_linear),
    StandIn(_NORM_GATE, "LayerNormGatedFunction.apply", norms.layer_norm_gated),
    StandIn(_NORM_GATE, "LayerNormGatedLinearFunction.apply", norms.layer_norm_gated_linear),
    StandIn("fla.modules.norm.layernorm_gated", "LayerNormFn.apply", other_norms.layernorm_fn),
    StandIn("fla.modules.norm.l2norm", "L2NormFunction.apply", norms.l2_norm),
    *(
        StandIn(_ACTIVATIONS, name, getattr(activations, name))
        for name in (
            "bias_gelu", "bias_gelu_bwd", "gelu_bwd", "gelu_fwd", "logsigmoid_bwd",
            "logsigmoid_fwd", "powglu_fwd", "powglu_fwdbwd", "powglu_linear", "sigmoid_bwd",
            "sigmoid_fwd", "sigmoidglu_fwd", "sigmoidglu_fwdbwd", "sqrelu_bwd", "sqrelu_fwd",
            "swiglu_fwd", "swiglu_fwdbwd", "swiglu_linear", "swish_bwd", "swish_fwd",
        )
    ),
    StandIn("fla.modules.rotary.ops", "rotary_embedding_fwdbwd", mixing.rotary_embedding_fwdbwd),
    StandIn("fla.modules.token_shift", "TokenShift.apply", mixing.token_shift),
    StandIn("fla.modules.causal_conv1d.ops", "CausalConv1dFunction.apply", mixing.causal_conv1d),
    StandIn("fla.modules.causal_conv1d.ops", "causal_conv1d_update", fla.causal_conv1d_update),
    StandIn("fla.modules.fused_cross_entropy.ops", "cross_entropy_loss", losses.cross_entropy_loss),
    StandIn("fla.modules.fused_cross_entropy.ops", "FusedCrossEntropyLoss.forward",
            losses.fused_cross_entropy),
    StandIn("fla.modules.fused_linear_cross_entropy.ops", "FusedLinearCrossEntropyFunction.apply",
            losses.fused_linear_cross_entropy),
    StandIn("fla.modules.fused_kl_div.ops", "FusedKLDivLossFunction.apply", losses.fused_kl_div),
    StandIn("fla.ops.gated_delta_rule.gate", "fused_gdn_gate", gates.fused_gdn_gate),
    StandIn("fla.ops.kda.gate", "fused_kda_gate", gates.fused_kda_gate),
    StandIn("fla.ops.rwkv7.fused_addcmul", "Rwkv7FusedAddcmul.apply", mixing.addcmul_rwkv7),
    StandIn("fla.ops.rwkv7.fused_k_update", "KUpdateFunction.apply", mixing.k_update_rwkv7),
    StandIn("fla.ops.rwkv7.gate_output_correction", "GateOutputCorrection.apply",
            mixing.gate_output_correction),
    StandIn("fla.layers.utils", "get_layer_cache", cache.get_layer_cache),
    StandIn("fla.layers.mamba", "Mamba.slow_forward", mamba.slow_forward),
    StandIn("fla.layers.mamba", "mamba_inner_fn", mamba_inner_fn),
    StandIn("fla.layers.mamba", "selective_scan_fn", selective_scan_fn),
    StandIn("fla.layers.mamba", "selective_state_update", selective_state_update),
    StandIn("fla.layers.mamba2", "Mamba2.torch_forward", mamba.torch_forward),
    StandIn("fla.layers.mamba2", "mamba_chunk_scan_combined", mamba_chunk_scan_combined),
    StandIn("fla.layers.mamba2", "mamba_split_conv1d_scan_combined",
            mamba_split_conv1d_scan_combined),
    StandIn("fla.layers.mamba2", "selective_state_update", selective_state_update),
    StandIn("fla.layers.mamba3", "Mamba3.forward", mamba3.forward),
    StandIn("fla.layers.mamba3", "apply_rotary_qk_inference_fwd", apply_rotary_qk_inference_fwd),
    StandIn("fla.layers.mamba3", "mamba3_mimo_combined", mamba3_mimo),
    StandIn("fla.layers.mamba3", "mamba3_siso_combined", mamba3_siso_combined),
    StandIn("fla.layers.mamba3", "mamba3_step_fn", mamba3_step_fn),
)  # fmt: skip


def operators() -> Iterator[StandIn]:
    """fla's recurrences of which linattn has a function of the same name."""
    ours = {name: f for name in fla.__all__ if inspect.isfunction(f := getattr(fla, name))}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("fla.ops.") and ".backends." not in name:
            for attribute in sorted(ours.keys() & vars(module).keys()):
                if getattr(vars(module)[attribute], "__module__", None) == name:
                    yield StandIn(name, attribute, ours[attribute])
