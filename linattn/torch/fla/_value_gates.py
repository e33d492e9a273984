"""Decays of value channels, ``gv``: each value channel becomes a head, whose state is a column.

Columns of a state never interact, so that the decay of a column is one more decay of its head,
beside one of each token or key channel.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import _layout
from ._keywords import Given


def run(
    name: str, operator: Any, given: Given, extras: Given, **options: Any
) -> tuple[Tensor, Any]:
    """`_layout.run` where value channels decay by gv [B, T, HV, V].

    The first of ``extras`` are log decays, [B, T, HV] or [B, T, HV, K].
    """
    v, gv, v_first = given["v"], given["gv"], given.get("state_v_first", False)
    _layout.check_shape(name, "gv", gv, v.shape, "[B, T, HV, V]")
    s, _ = _layout.fields(name, given)
    heads, width = v.shape[2:]
    decays, *others = extras
    columns = {x: extras[x].repeat_interleave(width, 2) for x in (decays, *others)}
    for x in others:
        if extras[x].shape == v.shape:  # a strength of each value channel
            columns[x] = extras[x].flatten(2, 3)
    own = gv.flatten(2, 3)
    columns[decays] = columns[decays] + (own if columns[decays].ndim == 3 else own.unsqueeze(-1))
    if s is not None:
        s = (s if v_first else s.mT).flatten(1, 2).unsqueeze(-1)
    columns_given = given | {
        "v": v.flatten(2, 3).unsqueeze(-1), "initial_state": s, "state_v_first": False
    }  # fmt: skip
    o, end = _layout.run(name, operator, columns_given, columns, **options)
    o = o.squeeze(-1).unflatten(2, (heads, width))
    if end is None:
        return o, None
    end = end.squeeze(-1).unflatten(1, (heads, width))
    return o, end if v_first else end.mT.contiguous()
