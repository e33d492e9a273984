"""The functions and methods of Transformers that are replaced, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import _functions as f
from . import _scans as scans
from ._packing import PACKING
from ._tokens import LAYERS, decoding

#: Models that do not pass packing keywords to this part of them, which then mixes the sequences.
DROP_PACKING = {
    "Mamba2ForCausalLM": "backbone",
    "MambaForCausalLM": "backbone",
    "MambaModel": "layers.mixer",
    "FalconMambaForCausalLM": "backbone",
    "FalconMambaModel": "layers.mixer",
    "JambaMambaDecoderLayer": "mamba",
}
#: Layers that do not pass them to their scan, Mamba's.
SCAN_PACKED = ("FalconMambaMixer", "JambaMambaMixer", "MambaMixer", "ZambaMambaMixer")
#: Layers of softmax attention, whose masks do not always separate sequences.
MASK_PACKED = (
    "BailingHybridAttention",
    "BambaAttention",
    "FalconH1Attention",
    "GraniteMoeHybridAttention",
    "JambaAttention",
    "KimiLinearAttention",
    "LaraMiniAttention",
    "Lfm2Attention",
    "Lfm2MoeAttention",
    "Lfm3Attention",
    "MiniMaxAttention",
    "NemotronHAttention",
    "OlmoHybridAttention",
    "Qwen3NextAttention",
    "Qwen3_5Attention",
    "Qwen3_5MoeAttention",
    "Qwen4ExpTextAttention",
    "Zamba2Attention",
    "ZambaAttention",
)
#: Models and layers of which a part does not separate sequences.
MIX_PACKED = (
    "Glm5NextTextAttention",
    "Inkling2FullAttention",
    "Inkling2SlidingAttention",
    "Inkling2LoopFullAttention",
    "Inkling2LoopSlidingAttention",
    "InklingAttention",
    "RecurrentGemmaRecurrentBlock",
    "RwkvForCausalLM",
    "RwkvModel",
    "xLSTMModel",
)


class StandIn(NamedTuple):
    """A replacement; other signatures are left alone, other keywords go to the library."""

    function: Callable[..., Any]  #: of the library's signature
    packing: tuple[str, ...] = PACKING  #: the packing keywords that it supports
    #: SHA-256 of the library's source, by version, where a whole method is replaced
    sources: tuple[str, ...] = ()


#: Functions of the library's modules, and methods, by name.
STAND_INS = {
    "torch_chunk_gated_delta_rule": StandIn(f.torch_chunk_gated_delta_rule),
    "torch_recurrent_gated_delta_rule": StandIn(f.torch_recurrent_gated_delta_rule),
    "chunk_kimi_delta_attention": StandIn(f.torch_chunk_gated_delta_rule),
    "recurrent_kimi_delta_attention": StandIn(f.recurrent_kimi_delta_attention),
    "mamba2_chunk_scan": StandIn(f.mamba2_chunk_scan),
    "mamba2_selective_state_update": StandIn(f.selective_state_update, packing=()),
    "mamba2_split_conv1d_scan_combined": StandIn(f.mamba2_split_conv1d_scan_combined),
    "causal_conv1d_fn": StandIn(f.causal_conv1d_fn),
    "causal_conv1d_update": StandIn(f.causal_conv1d_update, packing=()),
    "MiniMaxLightningAttention.forward": StandIn(
        f.lightning_attention,
        packing=("cu_seq_lens_q", "seq_idx"),
        sources=(
            "69bc3f622840097cfc6810b4640b50455db872e89ee2a49d8bb326b65a9f88c5",
            "03c3f915c0c99c0943f3a981fd7ea0b430d11a194cb66a4ac46f42d1fec7d27f",
        ),
    ),
    **{
        f"{name}.forward": StandIn(decoding(layer), (), layer.sources)
        for layer in LAYERS
        for name in layer.classes
    },
    "mamba_selective_scan": StandIn(scans.mamba_selective_scan),
    "mamba_selective_state_update": StandIn(f.selective_state_update, packing=()),
    "RecurrentGemmaRglru._rnn_scan": StandIn(scans.rglru_scan, packing=()),
    "rwkv_linear_attention_cpu": StandIn(scans.rwkv_linear_attention_cpu, packing=()),
    "xLSTMBackend.forward": StandIn(
        scans.xlstm_backend,
        packing=(),
        sources=("ada65c0d031ae105da063d752e7f73222d23442f1c795d4548e7bb053845b15b",),
    ),
}
