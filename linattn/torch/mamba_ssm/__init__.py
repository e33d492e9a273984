"""A stand-in for the package mamba_ssm, on CPUs.

Its modules have the names, functions and signatures of mamba_ssm 2.3: the scans of Mamba, Mamba-2
and Mamba-3, their steps, gated norms, the layers and the language models with their generation.
All operands have gradients.  `linattn.torch.install_as` puts them in place of that package.

There is no tensor parallelism and no layer of softmax attention.  Arguments that tune GPU kernels
are ignored.
"""

from .models.mixer_seq_simple import MambaLMHeadModel
from .modules.mamba2 import Mamba2
from .modules.mamba3 import Mamba3
from .modules.mamba_simple import Mamba
from .ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__version__ = "2.3.2.post1+linattn"

__all__ = ["Mamba", "Mamba2", "Mamba3", "MambaLMHeadModel", "mamba_inner_fn", "selective_scan_fn"]
