"""The layer Mamba-3 of fla, which refuses CPUs; the functions that it calls are linattn's here."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ..._core.checks import wrong_shape


def forward(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None,
    past_key_values: Any = None, use_cache: bool | None = False,
    output_attentions: bool | None = False, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, None, Any]:  # fmt: skip
    """``Mamba3.forward`` on CPUs: a padded batch is packed, and its results are padded."""
    utils = sys.modules["fla.layers.utils"]
    if attention_mask is not None and attention_mask.ndim != 2:
        raise wrong_shape("Mamba3", "attention_mask", attention_mask, "(batch, seqlen)")
    state = utils.get_layer_cache(self, past_key_values)
    batch, n, _ = hidden_states.shape
    x, indices = hidden_states, None
    if state is None and n > 1:
        x, indices, cu_seqlens = utils.unpad_hidden_states(x, cu_seqlens, attention_mask, n)
    o, state = self.cuda_kernels_forward(
        x, state, use_cache=bool(use_cache) or state is not None, cu_seqlens=cu_seqlens
    )
    if state is not None:
        utils.update_layer_cache(self, past_key_values, recurrent_state=state, offset=n)
    return utils.repad_hidden_states(o, indices, batch, n), None, past_key_values
