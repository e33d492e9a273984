"""A stand-in for the package flashrnn, on CPUs.

Its modules have the names and signatures of flashrnn 1.0, and of its functions sLSTM, with
gradients of all operands.  `linattn.torch.install_as` puts them in place of that package.
"""

from .flashrnn.flashrnn import FlashRNNConfig, flashrnn

__version__ = "1.0.8+linattn"

__all__ = ["FlashRNNConfig", "flashrnn"]
