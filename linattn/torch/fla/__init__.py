"""The operators of flash-linear-attention (fla) on CPUs.

Functions have fla's names, parameters, defaults and layouts: tokens [B, T, H, K], gates [B, T, H]
or [B, T, H, K], states [N, H, K, V] (``state_v_first``: [N, H, V, K]), B = 1 with ``cu_seqlens``,
``scale=None`` for 1 / sqrt(K), and grouped value heads where fla has them.  All operands and
states have gradients.

``chunk_NAME`` and ``fused_recurrent_NAME`` compute exactly the same here:

=====================  =================================
NAME                   of linattn.torch
=====================  =================================
linear_attn            causal
simple_gla             gated
gla                    gated, by channel; without ``gv``
retention              gated
lightning_attn         gated
rwkv6                  gated, with a bonus
delta_rule             delta
gated_delta_rule, gdn  gated_delta; without ``gv``
kda                    gated_delta, by channel
dplr_delta_rule        dplr
rwkv7                  dplr
=====================  =================================

There are also ``fused_mul_recurrent_rwkv7`` and, from fla's modules, ``causal_conv1d``,
``causal_conv1d_update`` and ``ShortConvolution``.

Keywords that tune GPU kernels (``chunk_size``, ``chunk_indices``, ``cu_seqlens_cpu``,
``disable_recompute``, ``safe_gate`` and ``lower_bound`` where gates are given) are ignored.
Unsupported keywords (``gv``, ``cp_context``, ``return_intermediate_states``, ``use_graph``,
``max_num_seqs``, ``seq_idx``) raise NotImplementedError, and unknown ones TypeError.
"""

from . import convolution, delta, generalized, linear
from .convolution import *  # noqa: F403
from .delta import *  # noqa: F403
from .generalized import *  # noqa: F403
from .linear import *  # noqa: F403

__all__ = []
__all__ += convolution.__all__
__all__ += delta.__all__
__all__ += generalized.__all__
__all__ += linear.__all__
