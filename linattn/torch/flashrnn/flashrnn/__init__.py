"""The function of flashrnn, and its configuration."""

from .flashrnn import FlashRNNConfig, flashrnn

__all__ = ["FlashRNNConfig", "flashrnn"]
