"""linattn for PyTorch: the operators on CPU tensors, differentiable.

Names and arguments are those of the NumPy functions but for ``out``.  Each operator is in
``torch.ops.linattn``: it works under torch.compile, torch.export, torch.func and autocast, and
computes on the memory of tensors of any strides, with as many threads as PyTorch uses.
Gradients flow through states.  Forward-mode derivatives (jvp, jacfwd) raise NotImplementedError.
vmap takes no None: for a state without ``z`` and ``log_scale``, ``in_dims`` or ``out_dims`` is
``State(0, None, None)`` there.

Once this is imported, ``torch.load`` takes states that ``torch.save`` has written, also with
``weights_only=True``, its default, and ``torch.export.load`` takes programs that have states as
inputs or outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import ml_dtypes as _ml_dtypes  # noqa: F401
    import torch as _torch
except ImportError as error:
    raise ImportError(
        f"linattn.torch needs {error.name}: pip install -e '.[torch]'",
        name=__name__,  # python -m linattn.torch then ends in one line
    ) from error
if _torch.__version__ < "2.9":  # TorchVersion compares versions
    raise ImportError(
        f"linattn.torch needs torch 2.9 or newer and found {_torch.__version__}: "
        "pip install -e '.[torch]'"
    )

from .._call.fused import FusedState
from .._states.state_arrays import ExactState, SLSTMState, State, exact_state

# The operator of the same name, imported later, takes this package's place as an attribute.
from . import causal_conv1d as _causal_conv1d_package  # noqa: F401
from . import feature_maps, fla, mamba_ssm, nn
from . import operators as _operators
from ._core import private as _private
from ._core import runner as _runner
from ._patch.patching import patched
from ._patch.stand_ins import install_as
from .operators import *  # noqa: F403
from .patched_fla import patch_fla
from .patched_xlstm import patch_xlstm
from .transformers import patch_transformers

if _TYPE_CHECKING:
    from .._signatures.torch import *  # noqa: F403

_runner.install()
_private.register_fields(
    ExactState, [*State._fields, "lost"], lambda x: exact_state(tuple(x[:-1]), x[-1])
)
_STATES = FusedState, SLSTMState, State, nn.Cache, nn.ConvolvedState, nn.ModelState
for _kind in _STATES:
    _private.register_namedtuple(_kind)
# torch.load(weights_only=True) takes states that torch.save has written.
_torch.serialization.add_safe_globals([*_STATES, exact_state])

__all__ = [
    *_operators.__all__,
    "FusedState",
    "SLSTMState",
    "State",
    "feature_maps",
    "fla",
    "install_as",
    "mamba_ssm",
    "nn",
    "patch_fla",
    "patch_transformers",
    "patch_xlstm",
    "patched",
]
