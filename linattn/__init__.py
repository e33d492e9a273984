"""Linear attention for CPUs: forward, backward and recurrent, as NumPy gufuncs in C."""

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if (_module := importlib.util.find_spec("linattn._linattn")) is None:
    raise ImportError(
        "linattn's C module is not built here: run `pip install -e .` in the clone, which needs a "
        "C compiler, or leave the clone's folder to import an installed linattn"
    )
if os.path.isdir(_sources := os.path.join(os.path.dirname(__file__), "../src/kernel")):
    from ._core import checkout  # a clone, and no installed package

    checkout.warn_if_older(_module.origin, os.path.dirname(_sources))

from . import feature_maps, ufuncs
from ._call.fused import FusedState
from ._call.initial import initial_state
from ._core.product_dtype import get_products, products, set_products
from ._core.settings import (
    get_include,
    get_isa,
    get_num_threads,
    get_spin_time,
    set_isa,
    set_num_threads,
    set_spin_time,
    show_config,
)
from ._states.masks import lengths_from_mask
from ._states.state_arrays import ExactState, SLSTMState, State
from ._version import __version__
from .operators.streaming import blocks, stream

if TYPE_CHECKING:  # a build writes them, with overloads
    from ._signatures.arrays import *  # noqa: F403
else:
    from .operators.attention import causal, causal_backward, noncausal, noncausal_backward, step
    from .operators.conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_step
    from .operators.decay import log_decay, log_decay_backward
    from .operators.delta import delta, delta_backward, delta_step
    from .operators.dplr import dplr, dplr_backward, dplr_step
    from .operators.fused import fused_gated_delta_step, fused_gated_step
    from .operators.gated import gated, gated_backward, gated_step
    from .operators.gated_delta import gated_delta, gated_delta_backward, gated_delta_step
    from .operators.linear_scan import linear_scan, linear_scan_backward, linear_scan_step
    from .operators.linformer import linformer, linformer_backward
    from .operators.mlstm import mlstm, mlstm_backward, mlstm_step
    from .operators.momentum import momentum_delta, momentum_delta_backward, momentum_delta_step
    from .operators.selective_scan import (
        selective_scan,
        selective_scan_backward,
        selective_scan_step,
    )
    from .operators.slstm import slstm, slstm_backward, slstm_step
    from .operators.softmax import softmax_attention, softmax_attention_backward
    from .operators.wkv import wkv, wkv_backward, wkv_step

# What was pickled before the modules had rooms names these two.
sys.modules[f"{__name__}._state"] = sys.modules[State.__module__]
sys.modules[f"{__name__}._fused"] = sys.modules[FusedState.__module__]

__all__ = [
    "ExactState",
    "FusedState",
    "SLSTMState",
    "State",
    "__version__",
    "blocks",
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
    "feature_maps",
    "fused_gated_delta_step",
    "fused_gated_step",
    "gated",
    "gated_backward",
    "gated_delta",
    "gated_delta_backward",
    "gated_delta_step",
    "gated_step",
    "get_include",
    "get_isa",
    "get_num_threads",
    "get_products",
    "get_spin_time",
    "initial_state",
    "lengths_from_mask",
    "linear_scan",
    "linear_scan_backward",
    "linear_scan_step",
    "linformer",
    "linformer_backward",
    "log_decay",
    "log_decay_backward",
    "mlstm",
    "mlstm_backward",
    "mlstm_step",
    "momentum_delta",
    "momentum_delta_backward",
    "momentum_delta_step",
    "noncausal",
    "noncausal_backward",
    "products",
    "selective_scan",
    "selective_scan_backward",
    "selective_scan_step",
    "set_isa",
    "set_num_threads",
    "set_products",
    "set_spin_time",
    "show_config",
    "slstm",
    "slstm_backward",
    "slstm_step",
    "softmax_attention",
    "softmax_attention_backward",
    "step",
    "stream",
    "ufuncs",
    "wkv",
    "wkv_backward",
    "wkv_step",
]
