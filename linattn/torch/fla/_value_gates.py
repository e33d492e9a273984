"""Decays of value channels, ``gv``: each value channel becomes a head, whose state is a column.

Columns of a state never interact, so that the decay of a column is one more decay of its head,
beside one of each token or key channel.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import _layout


def run(
    name: str, operator: Any, q: Tensor, k: Tensor, v: Tensor, extras: dict[str, Tensor],
    gv: Tensor, *, initial_state: Any, state_v_first: bool, cu_seqlens: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """`layout.run` where value channels decay by gv [B, T, HV, V].

    The first of ``extras`` are log decays, [B, T, HV] or [B, T, HV, K].
    """
    _layout.check_shape(name, "gv", gv, v.shape, "[B, T, HV, V]")
    s, _ = _layout.fields(name, initial_state, k, v, cu_seqlens, False, state_v_first)
    heads, width = v.shape[2:]
    decays, *others = extras
    columns = {x: extras[x].repeat_interleave(width, 2) for x in (decays, *others)}
    for x in others:
        if extras[x].shape == v.shape:  # a strength of each value channel
            columns[x] = extras[x].flatten(2, 3)
    own = gv.flatten(2, 3)
    columns[decays] = columns[decays] + (own if columns[decays].ndim == 3 else own.unsqueeze(-1))
    if s is not None:
        s = (s if state_v_first else s.mT).flatten(1, 2).unsqueeze(-1)
    o, end = _layout.run(
        name, operator, q, k, v.flatten(2, 3).unsqueeze(-1), columns, initial_state=s,
        cu_seqlens=cu_seqlens, **options,
    )  # fmt: skip
    o = o.squeeze(-1).unflatten(2, (heads, width))
    if end is None:
        return o, None
    end = end.squeeze(-1).unflatten(1, (heads, width))
    return o, end if state_v_first else end.mT.contiguous()
