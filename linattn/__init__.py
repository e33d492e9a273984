"""Linear attention for CPUs: forward, backward and recurrent, as NumPy gufuncs in C."""

# ruff: noqa: F405  # functions that a stub defines for type checkers

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

from . import feature_maps, operators
from ._call.fused import FusedState
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

#: By name: the module that its first use imports.
_LATE = {name: module for module, names in operators.FUNCTIONS.items() for name in names.split()}
_LATE["initial_state"] = "initial"

if TYPE_CHECKING:  # a build writes their signatures, with overloads
    from . import ufuncs
    from ._signatures.arrays import *  # noqa: F403
    from .operators.streaming import blocks, stream
else:

    def __getattr__(name):
        if name == "ufuncs":
            return importlib.import_module(f"{__name__}.ufuncs")
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.operators.{_LATE[name]}")
        made = globals()[name] = getattr(module, name)
        return made

    def __dir__():
        return sorted({*globals(), *_LATE, "ufuncs"})


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
    "ssd",
    "ssd_backward",
    "ssd_step",
    "step",
    "stream",
    "ufuncs",
    "wkv",
    "wkv_backward",
    "wkv_step",
]
