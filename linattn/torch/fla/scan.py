"""HGRN: a gated recurrence of each channel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._state import State
from ..operators import linear_scan
from ._docs import documented
from ._layout import check_shape, check_tensor, count_sequences, sequence_bounds

__all__ = ["chunk_hgrn", "fused_recurrent_hgrn"]

Result = tuple[Tensor, Any]
_TYPES = {
    "x": "Tensor, [B, T, D]", "g": "Tensor, [B, T, D]", "initial_state": "Tensor, [N, D], optional",
}  # fmt: skip


@documented("linear_scan", **_TYPES)
def chunk_hgrn(
    x: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False
) -> Result:
    """HGRN: h = e^g h + x in each channel.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2)
    >>> fla.chunk_hgrn(x, torch.zeros(1, 3, 2))[0][..., 0]
    tensor([[1., 2., 3.]])
    """
    return _hgrn("chunk_hgrn", x, g, initial_state, output_final_state, None)


@documented("linear_scan", **_TYPES)
def fused_recurrent_hgrn(
    x: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """HGRN: h = e^g h + x in each channel.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> x = torch.ones(1, 3, 2)
    >>> fla.fused_recurrent_hgrn(x, torch.zeros(1, 3, 2))[0][..., 0]
    tensor([[1., 2., 3.]])
    """
    return _hgrn("fused_recurrent_hgrn", x, g, initial_state, output_final_state, cu_seqlens)


def _hgrn(
    name: str, x: Tensor, g: Tensor, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> Result:  # fmt: skip
    check_tensor(name, "x", x)
    if x.ndim != 3:
        raise ValueError(f"{name}: x has shape {tuple(x.shape)}; expected [B, T, D]")
    check_shape(name, "g", g, x.shape, "[B, T, D], that of x")
    packed = cu_seqlens is not None
    if packed:
        cu_seqlens = sequence_bounds(cu_seqlens)
    n = count_sequences(name, "x", x, cu_seqlens)
    start = None
    if initial_state is not None:
        check_shape(name, "initial_state", initial_state, (n, x.shape[2]), "[N, D]")
        start = State(initial_state[None] if packed else initial_state, None)
    o: Any = linear_scan(
        g, x, log=True, cu_seqlens=cu_seqlens, initial_state=start, return_state=output_final_state
    )
    o, end = o if output_final_state else (o, None)
    if end is None:
        return o.to(x.dtype), None
    return o.to(x.dtype), end.s[0] if packed else end.s
