"""A stand-in for the package causal_conv1d, on CPUs.

Its modules have the names, functions and signatures of causal_conv1d 1.7, and all operands have
gradients.  `linattn.torch.install_as` puts them in place of that package.  The attribute
``linattn.torch.causal_conv1d`` is linattn's operator; import these by
``from linattn.torch.causal_conv1d import causal_conv1d_fn``.
"""

from .causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update
from .causal_conv1d_varlen import causal_conv1d_varlen_states

__version__ = "1.7.0+linattn"

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]
