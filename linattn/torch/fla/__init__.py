"""The operators of flash-linear-attention (fla) on CPUs.

Functions have fla's names, parameters, defaults and layouts: tokens [B, T, H, K], gates [B, T, H]
or [B, T, H, K], states [N, H, K, V] (``state_v_first``: [N, H, V, K]), B = 1 with ``cu_seqlens``,
``scale=None`` for 1 / sqrt(K), and grouped value heads where fla has them.  All operands and
states have gradients.  The memory of a new state has keys first, also with ``state_v_first``.  The
forms of a function, ``chunk_NAME``, ``fused_recurrent_NAME``, ``fused_chunk_NAME`` and
``parallel_NAME``, as far as fla has them, compute exactly the same here.

The families of ``fla.ops``, and the operator of `linattn.torch` that computes their functions:

========================  =====================================================================
family                    here
========================  =====================================================================
abc                       yes: gated, twice, as gsa
atk                       no: only parts of preconditioned rules
attn                      no: softmax attention, as in PyTorch
attnres                   no: softmax attention over layers
based                     yes: causal, with the feature map Taylor
comba                     yes: dplr
cyfa                      no: a state of rotating slots, which no operator has
delta_rule                yes: delta
deltaformer               no: softmax attention
dsa                       no: sparse softmax attention
forgetting_attn           no: softmax attention
gated_delta_product       yes: gated_delta over the writes of all tokens
gated_delta_rule          yes: gated_delta; also as gdn
gated_oja_rule            yes: gated_delta, with keys and values exchanged
gdn2                      yes: gated_delta, by channel, with an erase key
generalized_delta_rule    yes: dplr, for dplr_delta_rule and iplr_delta_rule
gla                       yes: gated, by channel; HGRN-2 is gla with keys 1 - e^g
gsa                       yes: gated, twice, with a softmax between
hgrn                      yes: linear_scan
kda                       yes: gated_delta, by channel
lightnet                  yes: gated, by channel
lightning_attn            yes: gated
linear_attn               yes: causal
log_linear_attn           yes: PyTorch's own operations
mesa_net                  yes: gated, in conjugate gradients
moba                      no: sparse softmax attention
momentum_delta_rule       yes: momentum_delta
nsa                       no: sparse softmax attention
parallax                  no: softmax attention
path_attn                 no: softmax attention
precond_gated_delta_rule  yes: gated_delta, with an erase key; linear_scan for the preconditioner
precond_kda               yes: the same, by channel
rebased                   yes: causal, with the feature map Rebased
retention                 yes: gated
rwkv4                     yes: wkv
rwkv6                     yes: gated, with a bonus
rwkv7                     yes: dplr; also fused_mul_recurrent_rwkv7
simple_gla                yes: gated
stickbreaking_attn        no: attention with weights of pairs, without a state
titans                    no: a state that learns through a norm
ttt                       no: a state that learns through a norm
wall_attn                 no: softmax attention
========================  =====================================================================

All of them work under torch.compile; abc, gsa, gated_oja_rule and mesa_net break its graph.

From fla's modules there are ``causal_conv1d``, ``causal_conv1d_update`` and
``ShortConvolution`` here, and norms, rotary embeddings, activations and losses in
``linattn.torch.fla.modules``.  ``linattn.torch.fla.ops`` has the functions by fla's own paths.
`linattn.torch.install_as` lets programs import all of it as ``fla``.

Keywords that tune GPU kernels (``chunk_size``, ``chunk_indices``, ``cu_seqlens_cpu``,
``disable_recompute``, ``checkpoint_level``, ``safe_gate`` and ``lower_bound`` where gates are
given) are ignored.  Unsupported keywords (``cp_context``, ``return_intermediate_states``,
``use_graph``, ``max_num_seqs``, ``seq_idx``, ``output_attentions``) raise NotImplementedError, and
unknown ones TypeError.
"""

from . import (  # noqa: F401
    delta,
    generalized,
    linear,
    log_linear,
    mesa,
    momentum,
    oja,
    polynomial,
    preconditioned,
    scan,
    slots,
)
from ._parameters import Any, Pair, Result, Tensor, ThreeResults  # noqa: F401  in annotations
from ._rules import FUNCTIONS as _FUNCTIONS
from ._states import LogLinearAttentionState
from .convolution import ShortConvolution, causal_conv1d, causal_conv1d_update

__all__ = [
    "LogLinearAttentionState",
    "ShortConvolution",
    "causal_conv1d",
    "causal_conv1d_update",
    *_FUNCTIONS,
]
globals().update(_FUNCTIONS)

__version__ = "0.6.0+linattn"  # that of fla whose names and signatures these are
