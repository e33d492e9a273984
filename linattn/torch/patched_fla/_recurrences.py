"""Forms of fla's recurrences that `linattn.torch.fla` has under another name only.

The names of fla's chunked, fused and parallel kernels of a recurrence mean the same here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import fla

Optional = Tensor | None
Result = tuple[Tensor, Any]


def fused_chunk_linear_attn(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, normalize: bool = True, cu_seqlens: Optional = None,
) -> Result:  # fmt: skip
    return fla.chunk_linear_attn(
        q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens
    )


def fused_chunk_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Optional = None,
    output_final_state: bool = False, cu_seqlens: Optional = None,
) -> Result:  # fmt: skip
    return fla.chunk_retention(q, k, v, scale, initial_state, output_final_state, cu_seqlens)


def fused_chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Optional = None, g_gamma: Optional = None,
    scale: float | None = None, initial_state: Optional = None, output_final_state: bool = False,
    cu_seqlens: Optional = None,
) -> Result:  # fmt: skip
    return fla.chunk_simple_gla(
        q, k, v, g, g_gamma, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens
    )


def parallel_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, output_attentions: bool = False,
    cu_seqlens: Optional = None,
) -> Result:  # fmt: skip
    _refuse_attentions("parallel_retention", output_attentions)
    return fla.chunk_retention(q, k, v, scale, cu_seqlens=cu_seqlens)


def parallel_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Optional = None, scale: float | None = None,
    output_attentions: bool = False, cu_seqlens: Optional = None, cu_seqlens_cpu: Optional = None,
) -> Result:  # fmt: skip
    _refuse_attentions("parallel_simple_gla", output_attentions)
    return fla.chunk_simple_gla(q, k, v, g, scale=scale, cu_seqlens=cu_seqlens)


def _refuse_attentions(name: str, output_attentions: bool) -> None:
    if output_attentions:
        raise NotImplementedError(
            f"{name}: output_attentions is True; expected False, as linattn computes no matrix of "
            "attentions"
        )
