# mypy: disable-error-code="empty-body"
"""Delta rules that read, erase and write under different keys: comba, gdn2, iplr, products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..feature_maps import L2Norm
from ..operators import dplr, gated_delta
from ._docs import documented
from ._keywords import Given, refuse
from ._layout import check_shape, check_tensor, no_decay, sequence_bounds
from ._rules import Rule, call, function, named
from .delta import GATED_DELTA_RULE, Result, gate_of_channels

__all__ = [
    "chunk_comba", "chunk_gated_delta_product", "chunk_gdn2", "chunk_iplr_delta_rule",
    "fused_recurrent_comba", "fused_recurrent_gdn2", "fused_recurrent_iplr_delta_rule",
]  # fmt: skip

_NORM = L2Norm()


def normalized(given: Given, *names: str) -> Given:
    """These arguments, with rows of norm 1 if that is asked for."""
    phi = _NORM if given["use_qk_l2norm_in_kernel"] else lambda x: x
    return {name: phi(given[name]) for name in names}


def per_value_head(x: Tensor, v: Tensor) -> Tensor:
    """[B, T, H, K] for the value heads of each key head."""
    return x if x.shape[2] == v.shape[2] else x.repeat_interleave(v.shape[2] // x.shape[2], 2)


def _comba(name: str, given: Given) -> Given:
    """s_i = e^g s_{i-1} + k (beta (v - s_{i-1}^T p))^T as DPLR: a = p, b = -beta k, v = beta v."""
    k, v, p, beta = given["k"], given["v"], given["p"], given["beta"]
    p = k if p is None else p
    check_shape(name, "p", p, k.shape, "[B, T, H, K]")
    x = normalized(given | {"p": p}, "q", "k", "p")
    if beta is None:
        return x | {"a": per_value_head(x["p"], v), "b": per_value_head(-x["k"], v)}
    check_shape(name, "beta", beta, v.shape[:3], "[B, T, HV]")
    beta = beta.unsqueeze(-1)
    return x | {
        "v": beta * v,
        "a": per_value_head(x["p"], v),
        "b": -beta * per_value_head(x["k"], v),
    }


COMBA = Rule(dplr, named("a", "b", "g"), _comba, channels=("a", "b"))
_AUXILIARY = "Tensor, [B, T, H, K], optional"


@function(COMBA, p=_AUXILIARY)
def chunk_comba(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
) -> Result:  # fmt: skip
    """Comba: what the key p reads from the state before it decays is taken off the value."""


@function(COMBA, p=_AUXILIARY)
def fused_recurrent_comba(
    q: Tensor, k: Tensor, p: Tensor, v: Tensor, g: Tensor, beta: Tensor | None = None,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """Comba: what the key p reads from the state before it decays is taken off the value."""


def _gdn2(name: str, given: Given) -> Given:
    """The gated delta rule with erase key b k and values w v."""
    k, v, b, w = given["k"], given["v"], given["b"], given["w"]
    check_shape(name, "b", b, (*v.shape[:3], k.shape[3]), "[B, T, HV, K]")
    check_shape(name, "w", w, v.shape, "[B, T, HV, V]")
    x = normalized(given, "q", "k")
    erase = b * per_value_head(x["k"], v)
    return x | {"v": w * v, "g": gate_of_channels(name, given), "erase": erase}


def _gdn2_extras(name: str, given: Given) -> dict[str, Tensor]:
    v = given["v"]
    return {"g": given["g"], "beta": v.new_ones(()).expand(v.shape[:3]), "erase": given["erase"]}


def erased_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, erase: Tensor, **options: Any
) -> Any:
    return gated_delta(q, k, v, g, beta, erase=erase, **options)


erased_delta.__name__ = gated_delta.__name__
GDN2 = Rule(erased_delta, _gdn2_extras, _gdn2, channels=("g", "erase"), v_first=True)
_ERASE_AND_WRITE = {
    "g": "Tensor, [B, T, HV, K]", "b": "Tensor, [B, T, HV, K]", "w": "Tensor, [B, T, HV, V]",
}  # fmt: skip


@function(GDN2, **_ERASE_AND_WRITE)
def chunk_gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False, lower_bound: float | None = None, disable_recompute: bool = False,
    return_intermediate_states: bool = False, state_v_first: bool = False, cp_context: Any = None,
    *, A_log: Tensor | None = None, dt_bias: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Gated DeltaNet 2: the key erases through the gate b, values pass through the gate w."""


@function(GDN2, **_ERASE_AND_WRITE)
def fused_recurrent_gdn2(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False, lower_bound: float | None = None,
    state_v_first: bool = False, cu_seqlens: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """Gated DeltaNet 2: the key erases through the gate b, values pass through the gate w."""


def _no_gate(name: str, given: Given) -> dict[str, Tensor]:
    return {"a": given["a"], "b": given["b"], "g": no_decay(given["v"])}


IPLR = Rule(dplr, _no_gate, channels=("a", "b"))


@function(IPLR, a="Tensor, [B, T, H, K]")
def chunk_iplr_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, **kwargs: Any,
) -> Result:  # fmt: skip
    """The generalised delta rule without decay: identity plus low rank."""


@function(IPLR)
def fused_recurrent_iplr_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Result:  # fmt: skip
    """The generalised delta rule without decay: identity plus low rank."""


@documented(
    "gated_delta", k="Tensor, [B, T n, H, K]", v="Tensor, [B, T n, H, V]",
    g="Tensor, [B, T, H], optional", beta="Tensor, [B, T n, H]",
)  # fmt: skip
def chunk_gated_delta_product(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, num_householder: int,
    scale: float | None = None, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, cp_context: Any = None,
) -> Result:  # fmt: skip
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
    name, n = "chunk_gated_delta_product", num_householder
    refuse(name, {"cp_context": cp_context})
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}: num_householder is {n!r}; expected a positive integer")
    check_tensor(name, "q", q)
    check_shape(name, "k", k, (q.shape[0], n * q.shape[1], *q.shape[2:]), "[B, T n, H, K]")
    if g is not None:
        check_shape(name, "g", g, q.shape[:3], "[B, T, H]")
        later = g.new_zeros(()).expand(*g.shape[:2], n - 1, g.shape[2])
        g = torch.cat([g.unsqueeze(2), later], 2).flatten(1, 2)
    given = {
        "q": q.repeat_interleave(n, 1), "k": k, "v": v, "beta": beta,
        "g": no_decay(k) if g is None else g, "use_gate_in_kernel": False,
        "use_beta_sigmoid_in_kernel": False, "allow_neg_eigval": False, "scale": scale,
        "initial_state": initial_state, "output_final_state": output_final_state,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "cu_seqlens": None if cu_seqlens is None else n * sequence_bounds(cu_seqlens),
    }  # fmt: skip
    o, state = call(GATED_DELTA_RULE._replace(v_first=False), name, given, {})
    return o[:, n - 1 :: n].contiguous(), state
