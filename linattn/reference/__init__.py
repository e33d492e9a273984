"""The definitions: every operator in float64 NumPy, to read and to test against.

Each function has the name, the operands and the options of the one in `linattn`, and takes one
token after another, in the letters of the equations.  ``rescaled_features`` has attention with
positive random features that rescale as they go, and ``maps`` the feature maps and their
derivatives.

Examples
--------
>>> import numpy as np, linattn, linattn.reference
>>> q, k, v = np.random.default_rng(0).normal(size=(3, 10, 4))
>>> np.abs(linattn.causal(q, k, v) - linattn.reference.causal(q, k, v)).max() < 1e-14
np.True_
"""

from . import maps, rescaled_features
from .conv import (
    causal_conv1d,
    causal_conv1d_backward,
    causal_conv1d_step,
    log_decay,
    log_decay_backward,
)
from .delta_rule import delta, delta_backward, delta_step
from .fused import fused_gated_delta_step, fused_gated_step
from .gated_attention import gated, gated_backward, gated_step
from .gated_rules import (
    dplr,
    dplr_backward,
    dplr_step,
    gated_delta,
    gated_delta_backward,
    gated_delta_step,
)
from .linear import causal, causal_backward, noncausal, noncausal_backward, step
from .momentum import momentum_delta, momentum_delta_backward, momentum_delta_step
from .rwkv import wkv, wkv_backward, wkv_step
from .scan import (
    linear_scan,
    linear_scan_backward,
    linear_scan_step,
    selective_scan,
    selective_scan_backward,
    selective_scan_step,
)
from .slstm import slstm, slstm_backward, slstm_step
from .softmax import linformer, linformer_backward, softmax_attention, softmax_attention_backward
from .ssd import ssd, ssd_backward, ssd_step
from .xlstm import mlstm, mlstm_backward, mlstm_step

__all__ = [
    "causal",
    "causal_backward",
    "causal_conv1d",
    "causal_conv1d_backward",
    "causal_conv1d_step",
    "delta",
    "delta_backward",
    "delta_step",
    "dplr",
    "dplr_backward",
    "dplr_step",
    "fused_gated_delta_step",
    "fused_gated_step",
    "gated",
    "gated_backward",
    "gated_delta",
    "gated_delta_backward",
    "gated_delta_step",
    "gated_step",
    "linear_scan",
    "linear_scan_backward",
    "linear_scan_step",
    "linformer",
    "linformer_backward",
    "log_decay",
    "log_decay_backward",
    "maps",
    "mlstm",
    "mlstm_backward",
    "mlstm_step",
    "momentum_delta",
    "momentum_delta_backward",
    "momentum_delta_step",
    "noncausal",
    "noncausal_backward",
    "rescaled_features",
    "selective_scan",
    "selective_scan_backward",
    "selective_scan_step",
    "slstm",
    "slstm_backward",
    "slstm_step",
    "softmax_attention",
    "softmax_attention_backward",
    "ssd",
    "ssd_backward",
    "ssd_step",
    "step",
    "wkv",
    "wkv_backward",
    "wkv_step",
]
