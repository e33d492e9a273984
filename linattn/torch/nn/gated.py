"""Layers whose memory decays: Gated DeltaNet, and gated attention as in Mamba-2."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._core.conversions import work_dtype
from ..operators import log_decay
from . import _arguments
from ._attention_layer import by_heads, rates_by_heads
from .conv import ConvolvedAttention


class GatedDeltaNet(ConvolvedAttention):
    """Gated DeltaNet: the delta rule on a memory that decays, as in Qwen3-Next.

    ``R_i = exp(g_i) s_{i-1}``, ``s_i = R_i + k_i (beta_i (v_i - R_i^T k_i))^T``,
    ``o_i = s_i^T q_i / sqrt(d)``, with q, k and v from a short convolution and silu, q and k of
    norm 1, ``beta_i = sigmoid(W_b x_i)`` and ``g_i = -exp(A_log) softplus(W_a x_i + dt_bias)``,
    one number each per head.  The output is ``W_o (norm(o_i) * silu(W_z x_i))``, with the root
    mean square norm of each head.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of query and key heads.
    num_v_heads : int, optional
        The number of heads of values, gates and memory, a multiple of num_heads, which is the
        default.
    head_dim : int, optional
        d, the width of a query or key; embed_dim / num_heads by default.
    head_v_dim : int, optional
        The width of a value; head_dim by default.
    conv_size : int, default 4
        The length of the convolution's filters.
    allow_neg_eigval : bool, default False
        beta in (0, 2) rather than (0, 1): a write may reverse what the memory held.
    norm_eps : float, default 1e-6
        Added to the mean square by the norm.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, num_v_heads is not a multiple of
        num_heads, or embed_dim is not and head_dim is not given.

    Notes
    -----
    Time and memory O(n), and O(1) per token for `step`.  A state is a `ConvolvedState`, its
    memory's s (batch, num_heads, num_v_heads / num_heads, head_dim, head_v_dim).

    References
    ----------
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR
    2025, eq. 10 and section 3.4; Grazzi et al., "Unlocking State-Tracking in Linear RNNs
    Through Negative Eigenvalues", ICLR 2025 (beta up to 2)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import GatedDeltaNet
    >>> layer, x = GatedDeltaNet(64, num_heads=2, num_v_heads=4), torch.ones(2, 10, 64)
    >>> y, state = layer(x, return_state=True)
    >>> y.shape, state.memory.s.shape
    (torch.Size([2, 10, 64]), torch.Size([2, 2, 2, 32, 32]))
    """

    _operator = "gated_delta"
    _fused_step = "fused_gated_delta_step"
    _projections = ("qkv_proj", "gate_proj", "beta_proj", "decay_proj")
    _shown = (
        "embed_dim", "num_heads", "num_v_heads", "head_dim", "head_v_dim", "allow_neg_eigval",
    )  # fmt: skip

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_v_heads: int | None = None,
        head_dim: int | None = None,
        head_v_dim: int | None = None,
        conv_size: int = 4,
        allow_neg_eigval: bool = False,
        norm_eps: float = 1e-6,
        bias: bool = False,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        name = self._name
        if head_dim is None:
            head_dim = _arguments.multiple(name, ("embed_dim", embed_dim), ("num_heads", num_heads))
        head_v_dim = head_dim if head_v_dim is None else head_v_dim
        num_v_heads = num_heads if num_v_heads is None else num_v_heads
        _arguments.multiple(name, ("num_v_heads", num_v_heads), ("num_heads", num_heads))
        values = num_v_heads * head_v_dim
        super().__init__(embed_dim, values, bias, dropout, **factory)
        self.num_heads, self.num_v_heads = num_heads, num_v_heads
        self.head_dim, self.head_v_dim = head_dim, head_v_dim
        self.allow_neg_eigval = allow_neg_eigval
        self._split = (num_heads * head_dim, num_heads * head_dim, values)
        self._shape = (num_heads, num_v_heads // num_heads, head_dim, head_v_dim)
        self._options = {"feature_map": "l2norm", "scale": head_dim**-0.5}
        self.qkv_proj = nn.Linear(embed_dim, sum(self._split), bias=bias, **factory)
        self.gate_proj = nn.Linear(embed_dim, values, bias=bias, **factory)
        self.beta_proj = nn.Linear(embed_dim, num_v_heads, bias=bias, **factory)
        self.decay_proj = nn.Linear(embed_dim, num_v_heads, bias=bias, **factory)
        norm = nn.RMSNorm(head_v_dim, eps=norm_eps, **factory)
        self._add_memory(num_v_heads, sum(self._split), conv_size, False, norm, **factory)
        self.reset_parameters()

    def _convolved(self, mixed: Tensor, *others: Tensor) -> tuple[Any, ...]:
        _, b, a = others
        heads, group = self.num_heads, self.num_v_heads // self.num_heads
        q, k, v = mixed.split(self._split, -1)
        beta = torch.sigmoid(b) * (2 if self.allow_neg_eigval else 1)
        g = log_decay(a.to(work_dtype(a.dtype)), self.A_log, self.dt_bias)
        return (
            by_heads(q, heads, 1), by_heads(k, heads, 1), by_heads(v, heads, group),
            rates_by_heads(g, heads, group), rates_by_heads(beta, heads, group),
            None,  # erase
        )  # fmt: skip

    def _finish(self, o: Tensor, mixed: Tensor, *others: Tensor) -> Tensor:
        z = others[0]
        by_head = o.unflatten(-1, (self.num_v_heads, self.head_v_dim))
        by_head = self.norm(by_head.to(self.norm.weight.dtype))  # autocast may have lowered it
        return by_head.flatten(-2) * functional.silu(z)

    def _fused_operands(self, *projected: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        mixed, z, b, a = projected
        beta_scale = 2.0 if self.allow_neg_eigval else 1.0
        return (mixed, a, b), {"z": z, "beta_scale": beta_scale, "scale": self._options["scale"]}


class GatedAttention(ConvolvedAttention):
    """Linear attention whose memory decays, a state space model in the style of Mamba-2.

    ``s_i = exp(g_i) s_{i-1} + k_i (dt_i v_i)^T``, ``o_i = s_i^T q_i + D v_i``, with q, k and v
    (there named C, B and x) from a short convolution and silu,
    ``dt_i = softplus(W_dt x_i + dt_bias)`` and ``g_i = -exp(A_log) dt_i``, one number each per
    head.  The output is ``W_o norm(o_i * silu(W_z x_i))``, with the root mean square norm of each
    group.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of heads of values, gates and memory.
    expand : int, default 2
        All heads together have expand * embed_dim numbers.
    state_dim : int, default 64
        The width of a query or key.
    num_groups : int, default 1
        The number of query and key heads, a divisor of num_heads.
    conv_size : int, default 4
        The length of the convolution's filters.
    norm_eps : float, default 1e-5
        Added to the mean square by the norm.
    bias, dropout, device, dtype
        As in `Attention`; the convolution always has a bias.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, expand * embed_dim is not a multiple
        of num_heads, or num_heads is not a multiple of num_groups.

    Notes
    -----
    Time and memory O(n), and O(1) per token for `step`.  A state is a `ConvolvedState`, its
    memory's s (batch, num_groups, num_heads / num_groups, state_dim, head_dim).

    References
    ----------
    Dao and Gu, "Transformers are SSMs", ICML 2024, eq. 1 and section 7 (the block and its norm)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import GatedAttention
    >>> layer, x = GatedAttention(64, num_heads=4, state_dim=16), torch.ones(2, 10, 64)
    >>> y, state = layer(x, return_state=True)
    >>> y.shape, state.memory.s.shape
    (torch.Size([2, 10, 64]), torch.Size([2, 1, 4, 16, 32]))
    """

    _operator = "gated"
    _fused_step = "fused_gated_step"
    _projections = ("vkq_proj", "gate_proj", "decay_proj")
    _shown = ("embed_dim", "num_heads", "num_groups", "state_dim", "head_dim")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        expand: int = 2,
        state_dim: int = 64,
        num_groups: int = 1,
        conv_size: int = 4,
        norm_eps: float = 1e-5,
        bias: bool = False,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        name = self._name
        width = expand * embed_dim
        _arguments.multiple(name, ("num_heads", num_heads), ("num_groups", num_groups))
        head_dim = _arguments.multiple(
            name, ("expand * embed_dim", width), ("num_heads", num_heads)
        )
        super().__init__(embed_dim, width, bias, dropout, **factory)
        self.num_heads, self.num_groups = num_heads, num_groups
        self.state_dim, self.head_dim = state_dim, head_dim
        self._split = (width, num_groups * state_dim, num_groups * state_dim)
        self._shape = (num_groups, num_heads // num_groups, state_dim, head_dim)
        self._options = {"feature_map": "identity", "scale": 1.0}
        self.vkq_proj = nn.Linear(embed_dim, sum(self._split), bias=bias, **factory)
        self.gate_proj = nn.Linear(embed_dim, width, bias=bias, **factory)
        self.decay_proj = nn.Linear(embed_dim, num_heads, bias=bias, **factory)
        norm = nn.RMSNorm(width, eps=norm_eps, **factory)
        self._add_memory(num_heads, sum(self._split), conv_size, True, norm, **factory)
        self.D = nn.Parameter(torch.empty(num_heads, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights and decay rates, as every gated layer, and set D to 1."""
        super().reset_parameters()
        nn.init.ones_(self.D)

    def _convolved(self, mixed: Tensor, *others: Tensor) -> tuple[Any, ...]:
        a = others[1]
        groups, group = self.num_groups, self.num_heads // self.num_groups
        v, k, q = mixed.split(self._split, -1)
        dt = -log_decay(a.to(work_dtype(a.dtype)), 0.0, self.dt_bias)  # softplus
        g = rates_by_heads(-torch.exp(self.A_log.to(dt.dtype)) * dt, groups, group)
        dt = rates_by_heads(dt, groups, group)[..., None].to(v.dtype)
        return (
            by_heads(q, groups, 1), by_heads(k, groups, 1), dt * by_heads(v, groups, group), g,
            None,  # bonus
        )  # fmt: skip

    def _finish(self, o: Tensor, mixed: Tensor, *others: Tensor) -> Tensor:
        v = mixed[..., : self._split[0]].unflatten(-1, (self.num_heads, self.head_dim))
        o = o + (v * self.D[:, None]).flatten(-2)
        return self._normalized(o * functional.silu(others[0]))

    def _normalized(self, o: Tensor) -> Tensor:
        """o divided by the root mean square of each group, times the norm's weights."""
        weight = self.norm.weight
        by_group = o.to(weight.dtype).unflatten(-1, (self.num_groups, -1))
        normalized = functional.rms_norm(by_group, by_group.shape[-1:], None, self.norm.eps)
        return normalized.flatten(-2) * weight

    def _fused_operands(self, *projected: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        mixed, z, dt = projected
        return (mixed, dt), {"z": z, "D": self.D, "norm_groups": self.num_groups}
