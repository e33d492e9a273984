"""Small models of Transformers with random weights, one for each family that linattn runs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch

VOCABULARY = 97

_PLAIN: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
#: Two heads of values a head of keys.
_QWEN: dict[str, Any] = _PLAIN | _LAYERS | {
    "intermediate_size": 48, "head_dim": 16, "linear_key_head_dim": 16,
    "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
_KIMI: dict[str, Any] = _PLAIN | _LAYERS | {
    "intermediate_size": 48, "moe_intermediate_size": 16, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_experts_per_tok": 2, "num_local_experts": 4, "n_group": 1, "topk_group": 1,
    "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
#: Two heads a group of keys and queries.
_MAMBA: dict[str, Any] = _PLAIN | {
    "num_hidden_layers": 2,
    "intermediate_size": 48, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 4,
    "mamba_d_state": 16, "mamba_chunk_size": 16,
}  # fmt: skip
_MAMBA_1: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_SMALL: dict[str, Any] = _PLAIN | _LAYERS | {"intermediate_size": 48}

#: By module: the model's class, its configuration's class, and what that is given.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", _QWEN | _EXPERTS),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _QWEN),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", _QWEN | _EXPERTS),
    "lara_mini": ("LaraMiniForCausalLM", "LaraMiniConfig", _QWEN | _EXPERTS),
    "qwen4_exp": ("Qwen4ExpForCausalLM", "Qwen4ExpTextConfig", _QWEN | _EXPERTS | {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 128,
        "indexer_compress_ratio": 4, "hc_lowrank": 8,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5,
        },
    }),
    "olmo_hybrid": ("OlmoHybridForCausalLM", "OlmoHybridConfig", _SMALL | {
        "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
    }),
    "kimi_linear": ("KimiLinearForCausalLM", "KimiLinearConfig", _KIMI | {
        "linear_head_dim": 8, "linear_num_heads": 4,
    }),
    "bailing_hybrid": ("BailingHybridForCausalLM", "BailingHybridConfig", _KIMI | {
        "head_dim": 8, "num_mtp_layers": 0,
    }),
    "glm5_next": ("Glm5NextForConditionalGeneration", "Glm5NextConfig", {
        "text_config": _KIMI | {
            "linear_head_dim": 8, "linear_num_heads": 4, "q_lora_rank": 16, "qk_rope_head_dim": 0,
            "n_routed_experts": 4, "index_topk": 128, "index_head_dim": 8, "index_n_heads": 2,
            "layer_types": ["linear_attention", "indexed_attention"], "hc_mult": 2,
            "index_kpool": 4,
        },
        "vision_config": {
            "depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32,
            "intermediate_size": 16, "projection_intermediate_size": 16,
        },
    }),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8,
        "head_dim": 8, "state_size": 16, "n_groups": 4, "chunk_size": 16, "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": None,
    }),
    "bamba": ("BambaForCausalLM", "BambaConfig", _MAMBA | {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1ForCausalLM", "FalconH1Config", _MAMBA | {"mamba_d_ssm": 64}),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", _MAMBA | {
        **_LAYERS, "num_local_experts": 4, "shared_intermediate_size": 32,
    }),
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig", _PLAIN | {
        "layer_types": ["linear_attention", "full_attention", "mlp"], "intermediate_size": 48,
        "head_dim": 8, "ssm_state_size": 16, "mamba_num_heads": 8, "mamba_head_dim": 8,
        "n_groups": 4, "chunk_size": 16,
    }),
    "zamba2": ("Zamba2ForCausalLM", "Zamba2Config", _PLAIN | {
        "num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"],
        "mamba_d_state": 16, "n_mamba_heads": 8, "mamba_ngroups": 4, "chunk_size": 16,
        "intermediate_size": 48, "num_key_value_heads": 4,
    }),
    "minimax": ("MiniMaxForCausalLM", "MiniMaxConfig", _SMALL | {
        "num_local_experts": 4, "block_size": 16,
    }),
    "mamba": ("MambaForCausalLM", "MambaConfig", _MAMBA_1),
    "falcon_mamba": ("FalconMambaForCausalLM", "FalconMambaConfig", _MAMBA_1),
    "jamba": ("JambaForCausalLM", "JambaConfig", _PLAIN | {
        "num_hidden_layers": 2, "intermediate_size": 48, "mamba_d_state": 4, "num_experts": 2,
        "attn_layer_period": 2, "attn_layer_offset": 1,
    }),
    "zamba": ("ZambaForCausalLM", "ZambaConfig", _PLAIN | {
        "num_hidden_layers": 3, "intermediate_size": 48, "mamba_d_state": 4,
        "layer_types": ["linear_attention", "hybrid", "hybrid"],
    }),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", _PLAIN | {
        "num_hidden_layers": 3, "intermediate_size": 96, "lru_width": 32,
        "attention_window_size": 64,
    }),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
        "context_length": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
    }),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", _PLAIN | {
        "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "intermediate_size": 48,
    }),
    "xlstm": ("xLSTMForCausalLM", "xLSTMConfig", {
        "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2,
        "chunk_size": 8, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
    }),
}  # fmt: skip


@contextlib.contextmanager
def fla_hidden() -> Iterator[None]:
    """Where the package fla is installed, models imported now call no GPU kernels of it on CPUs."""
    absent = object()
    before: Any = sys.modules.get("fla", absent)
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["fla"]
        if before is not absent:
            sys.modules["fla"] = before


def module(family: str) -> Any:
    with fla_hidden():
        return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def build(family: str, **changes: Any) -> Any:
    """A model of the family, with larger weights than the library's initial ones.

    With the initial weights, tokens hardly affect each other.
    """
    logging.getLogger("transformers").setLevel(logging.ERROR)
    kind, config, given = MODELS[family]
    module(family)  # before its package imports it
    package = importlib.import_module(f"transformers.models.{family}")
    torch.manual_seed(0)
    model = getattr(package, kind)(getattr(package, config)(**_merged(given, changes))).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.5 / p.shape[-1] ** 0.5)
    return model


def _merged(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return given | {
        key: _merged(given[key], value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
