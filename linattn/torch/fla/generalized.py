"""Delta rules that read, erase and write under different keys: comba, gdn2, iplr, products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..feature_maps import L2Norm
from ..operators import dplr, gated_delta
from . import _layout
from ._keywords import Given, states_v_first
from ._layout import check_shape, check_tensor, no_decay
from ._parameters import Result
from ._rules import family, rule
from .delta import gate_of_channels, mapped

_NORM = L2Norm()


def normalized(given: Given, *names: str) -> None:
    """Give these arguments' rows norm 1 if that is asked for."""
    if given["use_qk_l2norm_in_kernel"]:
        given.update({name: _NORM(given[name]) for name in names})


def per_value_head(x: Tensor, v: Tensor) -> Tensor:
    """[B, T, H, K] for the value heads of each key head."""
    return x if x.shape[2] == v.shape[2] else x.repeat_interleave(v.shape[2] // x.shape[2], 2)


@rule(
    dplr,
    {
        "chunk_comba": "q k v p g beta=None scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel cu_seqlens cu_seqlens_cpu",
        "fused_recurrent_comba": "q k p v g beta=None scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel cu_seqlens",
    },
    channels=("a", "b"),
)
def _comba(name: str, given: Given) -> Given:
    """Comba: what the key p reads from the state before it decays is taken off the value."""
    # s_i = e^g s_{i-1} + k (beta (v - s_{i-1}^T p))^T as DPLR: a = p, b = -beta k, v = beta v.
    if given["p"] is None:
        given["p"] = given["k"]
    check_shape(name, "p", given["p"], given["k"].shape, "[B, T, H, K]")
    normalized(given, "q", "k", "p")
    v, beta = given["v"], given["beta"]
    a, b = per_value_head(given["p"], v), per_value_head(given["k"], v)
    if beta is None:
        return {"a": a, "b": -b, "g": given["g"]}
    check_shape(name, "beta", beta, v.shape[:3], "[B, T, HV]")
    beta = beta.unsqueeze(-1)
    given["v"] = beta * v
    return {"a": a, "b": -beta * b, "g": given["g"]}


def erased_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, erase: Tensor, **options: Any
) -> Any:
    return gated_delta(q, k, v, g, beta, erase=erase, **options)


erased_delta.__name__ = gated_delta.__name__


@rule(
    erased_delta,
    {
        "chunk_gdn2": "q k v g b w scale initial_state output_final_state "
        "use_qk_l2norm_in_kernel use_gate_in_kernel cu_seqlens cu_seqlens_cpu safe_gate "
        "lower_bound disable_recompute return_intermediate_states state_v_first cp_context "
        "* A_log dt_bias **kwargs",
        "fused_recurrent_gdn2": "q k v g b w A_log dt_bias scale initial_state "
        "output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel lower_bound "
        "state_v_first cu_seqlens **kwargs",
    },
    channels=("g", "erase"),
    former=states_v_first,
    types={
        "g": "Tensor, [B, T, HV, K]",
        "b": "Tensor, [B, T, HV, K]",
        "w": "Tensor, [B, T, HV, V]",
    },
)
def _gdn2(name: str, given: Given) -> Given:
    """Gated DeltaNet 2: the key erases through the gate b, values pass through the gate w."""
    k, v, b, w = given["k"], given["v"], given["b"], given["w"]
    check_shape(name, "b", b, (*v.shape[:3], k.shape[3]), "[B, T, HV, K]")
    check_shape(name, "w", w, v.shape, "[B, T, HV, V]")
    normalized(given, "q", "k")
    erase = b * per_value_head(given["k"], v)
    g = gate_of_channels(name, given)
    given["v"] = v = w * v
    return {"g": g, "beta": v.new_ones(()).expand(v.shape[:3]), "erase": erase}


@rule(
    dplr,
    {
        "chunk_iplr_delta_rule": "q k v a b scale initial_state output_final_state cu_seqlens "
        "cu_seqlens_cpu **kwargs",
        "fused_recurrent_iplr_delta_rule": "q k v a b scale initial_state output_final_state "
        "cu_seqlens",
    },
    channels=("a", "b"),
)
def _iplr_delta_rule(name: str, given: Given) -> Given:
    """The generalised delta rule without decay: identity plus low rank."""
    return {"a": given["a"], "b": given["b"], "g": no_decay(given["v"])}


@family(
    "gated_delta",
    {
        "chunk_gated_delta_product": "q k v g beta num_householder scale initial_state "
        "output_final_state use_qk_l2norm_in_kernel cu_seqlens cu_seqlens_cpu cp_context",
    },
    types={
        "k": "Tensor, [B, T n, H, K]",
        "v": "Tensor, [B, T n, H, V]",
        "g": "Tensor, [B, T, H], or None",
        "beta": "Tensor, [B, T n, H]",
    },
)
def _gated_delta_product(name: str, given: Given) -> Result:
    """Gated DeltaProduct: each token decays the state once and writes to it n times.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import fla
    >>> q, k = torch.ones(1, 3, 2, 4), torch.ones(1, 6, 2, 4)
    >>> o, state = fla.chunk_gated_delta_product(q, k, k, None, k[..., 0], num_householder=2)
    >>> o.shape
    torch.Size([1, 3, 2, 4])
    """
    q, k, g, n = (given[x] for x in ("q", "k", "g", "num_householder"))
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}: num_householder is {n!r}; expected a positive integer")
    check_tensor(name, "q", q)
    check_shape(name, "k", k, (q.shape[0], n * q.shape[1], *q.shape[2:]), "[B, T n, H, K]")
    if g is None:
        g = no_decay(k)
    else:
        check_shape(name, "g", g, q.shape[:3], "[B, T, H]")
        later = g.new_zeros(()).expand(*g.shape[:2], n - 1, g.shape[2])
        g = torch.cat([g.unsqueeze(2), later], 2).flatten(1, 2)
    given["q"] = q.repeat_interleave(n, 1)
    if given["cu_seqlens"] is not None:
        given["cu_seqlens"] = n * given["cu_seqlens"]
    _layout.check_tokens(name, given)
    extras = {"g": g, "beta": given["beta"]}
    _layout.check_extras(name, given, extras, ())
    o, state = _layout.run(name, gated_delta, given, extras, **mapped(name, given))
    return o[:, n - 1 :: n].contiguous(), state
