"""The gated Oja rule: a delta rule whose values erase keys."""

from __future__ import annotations

from .._core.conversions import refuse_transforms
from ..feature_maps import L2Norm
from ..operators import gated_delta
from . import _layout
from ._columns import exchanged
from ._keywords import Given
from ._layout import check_shape, check_tokens
from ._parameters import Result
from ._rules import family

_NORM = L2Norm()
_OPERATOR = exchanged(gated_delta)


def _both_norms(name: str, given: Given, more: Given) -> None:
    """Take the keyword that stands for the two of queries and keys."""
    both = bool(more.pop("use_qk_l2norm_in_kernel", False))
    if both and not (given["use_q_l2norm"] or given["use_k_l2norm"]):
        given["use_q_l2norm"] = given["use_k_l2norm"] = True


@family(
    "gated_delta",
    {
        "chunk_gated_oja_rule": "q k v gv beta scale initial_state output_final_state "
        "use_q_l2norm use_k_l2norm cu_seqlens cu_seqlens_cpu **kwargs",
    },
    former=_both_norms,
    types={"gv": "Tensor, [B, T, HV, V]"},
)
def _oja(name: str, given: Given) -> Result:
    """The gated Oja rule: what the state has at a value is taken off the key that is written."""
    refuse_transforms(name)
    check_tokens(name, given)
    v = given["v"]
    check_shape(name, "gv", given["gv"], v.shape, "[B, T, HV, V]")
    check_shape(name, "beta", given["beta"], v.shape[:3], "[B, T, HV]")
    for x in "qk":
        if given[f"use_{x}_l2norm"]:
            given[x] = _NORM(given[x])
    return _layout.run(name, _OPERATOR, given, {x: given[x] for x in ("gv", "beta")})


@family(
    "gated_delta",
    {
        "fused_recurrent_gated_oja_rule": "q k v gv beta=None scale initial_state "
        "output_final_state use_q_l2norm use_k_l2norm cu_seqlens **kwargs",
    },
    former=_both_norms,
)
def _recurrent_oja(name: str, given: Given) -> Result:
    """The gated Oja rule: what the state has at a value is taken off the key that is written."""
    v = given["v"]
    if given["gv"] is None:
        given["gv"] = v.new_zeros(()).expand_as(v)
    if given["beta"] is None:
        given["beta"] = v.new_ones(()).expand(v.shape[:3])
    return _oja(name, given)
