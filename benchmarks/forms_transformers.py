"""The chunked tensor code of Hugging Face's transformers, as its models call it without a GPU.

Operands are contiguous in their layout, (1, n, heads, d), and results are turned into linattn's,
(heads, n, d).  Their attention multiplies queries by d**-0.5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from forms_delta_torch import both, forward
from harness import Call
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

#: Chunk lengths: first that of the models' own configuration, then others that may suit a CPU.
CHUNKS = {"gated": (256, 64, 128), "gated_delta": (64, 32), "gated_delta by channel": (64,)}


def _mamba2(C, B, x, dt, chunk: int) -> torch.Tensor:
    """With A = -1, so that dt is minus the gate."""
    return mamba2_chunk_scan(x, dt, -torch.ones(x.shape[2]), B, C, chunk_size=chunk)


def _qwen3(q, k, v, g, beta, chunk: int) -> torch.Tensor:
    return torch_chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=chunk)[0]


def _kimi(q, k, v, g, beta, chunk: int) -> torch.Tensor:
    return chunk_kimi_delta_attention(q, k, v, g, beta, chunk_size=chunk)[0]


FORMS = {"gated": _mamba2, "gated_delta": _qwen3, "gated_delta by channel": _kimi}


def calls(name: str, operands: list[np.ndarray], backward: bool) -> dict[str, Call]:
    """Calls by chunk length, the model's own first; operands (heads, n[, d]), cotangent last."""
    theirs = [np.ascontiguousarray(x.swapaxes(0, 1))[None] for x in operands]
    call = both if backward else forward
    return {f"chunk {c}": _turned(call(_with(FORMS[name], c), theirs)) for c in CHUNKS[name]}


def _with(form: Callable, chunk: int) -> Callable[..., torch.Tensor]:
    return lambda *inputs: form(*inputs, chunk=chunk)


def _turned(call: Call) -> Call:
    """The results as views in linattn's layout."""

    def turned() -> tuple[np.ndarray, ...]:
        result = call()
        results = result if isinstance(result, tuple) else (result,)
        return tuple(x[0].numpy().swapaxes(0, 1) for x in results)

    return turned
