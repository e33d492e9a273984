"""The layers Mamba and Mamba-2 of fla, whose forms for CPUs loop over tokens or chunks.

They import the scans of mamba_ssm, or have None in their place.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def slow_forward(
    self: Any, input_states: Tensor, last_state: Any = None, use_cache: bool | None = False,
    attention_mask: Tensor | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """``Mamba.slow_forward`` by the layer's form for GPUs, whose functions are linattn's here."""
    return _forward(self, input_states, last_state, use_cache, attention_mask)


def torch_forward(
    self: Any, input_states: Tensor, last_state: Any = None, use_cache: bool = False,
    attention_mask: Tensor | None = None,
) -> Any:  # fmt: skip
    """``Mamba2.torch_forward`` in the same way."""
    return _forward(self, input_states, last_state, use_cache, attention_mask)


def _forward(self: Any, x: Tensor, last_state: Any, use_cache: Any, mask: Tensor | None) -> Any:
    convolution = getattr(self.causal_conv1d_fn, "__module__", "")
    if self.backend == "cuda" and not convolution.startswith("linattn."):
        return NotImplemented  # the package causal_conv1d has none for CPUs
    # The form that training takes without a cache ignores the mask.
    return self.cuda_kernels_forward(x, last_state, use_cache or mask is not None, mask)
