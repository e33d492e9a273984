"""What fla's layers take from their caches."""

from __future__ import annotations

import sys
from typing import Any

from ..fla._lent import lend


def get_layer_cache(module: Any, past_key_values: Any) -> Any:
    """The states of a layer; the recurrent one may be overwritten if only the cache has it."""
    layer_idx = sys.modules["fla.layers.utils"].require_cache_layer_idx(module, past_key_values)
    if past_key_values is None or len(past_key_values) <= layer_idx:
        return None
    states = past_key_values[layer_idx]
    lend(states)
    return states
