"""Layers whose memory decays by gates: Gated DeltaNet, and gated attention as in Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._state import State
from .._tensors import work_dtype
from ..operators import gated, gated_delta, gated_delta_step, gated_step, log_decay
from . import _check
from ._base import Operator, by_heads, rates_by_heads
from .conv import ConvolvedAttention, ShortConvolution, reset_decay


class GatedDeltaNet(ConvolvedAttention):
    """Gated DeltaNet: the delta rule on a memory that decays, as Qwen3-Next has it.

    ``R_i = exp(g_i) s_{i-1}``, ``s_i = R_i + k_i (beta_i (v_i - R_i^T k_i))^T``,
    ``o_i = s_i^T q_i / sqrt(d)``, with q, k and v from a short convolution and silu, q and k of
    norm 1, ``beta_i = sigmoid(W_b x_i)`` and ``g_i = -exp(A_log) softplus(W_a x_i + dt_bias)``,
    one number each a head.  The output is ``W_o (norm(o_i) * silu(W_z x_i))``, norm the root mean
    square by heads.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        Heads of queries and keys.
    num_v_heads : int, optional
        Heads of values, of gates and of the memory, a multiple of num_heads; num_heads by
        default.
    head_dim : int, optional
        d, the width of a query or key; embed_dim / num_heads by default.
    head_v_dim : int, optional
        The width of a value; head_dim by default.
    conv_size : int, default 4
        The length of the convolution's filters.
    allow_neg_eigval : bool, default False
        beta in (0, 2) in the place of (0, 1): a write may turn round what the memory held.
    norm_eps : float, default 1e-6
        Added to the mean square by the norm.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError
        If an argument has another type.
    ValueError
        If a number of heads or a width is below 1, embed_dim no multiple of num_heads and
        head_dim not given, num_v_heads no multiple of num_heads, or dropout no probability.

    Notes
    -----
    Time and memory O(n), and O(1) a token for `step`.  A state is a `ConvolvedState`, its
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

    _operator = Operator(gated_delta, gated_delta_step)
    _shown = (
        "embed_dim", "num_heads", "num_v_heads", "head_dim", "head_v_dim", "allow_neg_eigval",
    )  # fmt: skip

    @_check.keywords
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
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name, factory = self._name, {"device": device, "dtype": dtype}
        if head_dim is None:
            head_dim = _check.multiple(name, ("embed_dim", embed_dim), ("num_heads", num_heads))
        head_v_dim = head_dim if head_v_dim is None else head_v_dim
        num_v_heads = num_heads if num_v_heads is None else num_v_heads
        _check.multiple(name, ("num_v_heads", num_v_heads), ("num_heads", num_heads))
        _check.integer(name, "head_dim", head_dim)
        _check.integer(name, "head_v_dim", head_v_dim)
        _check.positive(name, "norm_eps", norm_eps, zero=True)
        values = num_v_heads * head_v_dim
        super().__init__(embed_dim, values, bias, dropout, **factory)
        self.num_heads, self.num_v_heads = num_heads, num_v_heads
        self.head_dim, self.head_v_dim = head_dim, head_v_dim
        self.allow_neg_eigval = allow_neg_eigval
        self._split = (num_heads * head_dim, num_heads * head_dim, values)
        self._options = {"feature_map": "l2norm", "scale": head_dim**-0.5}
        self.qkv_proj = nn.Linear(embed_dim, sum(self._split), bias=bias, **factory)
        self.gate_proj = nn.Linear(embed_dim, values, bias=bias, **factory)
        self.beta_proj = nn.Linear(embed_dim, num_v_heads, bias=bias, **factory)
        self.decay_proj = nn.Linear(embed_dim, num_v_heads, bias=bias, **factory)
        self.conv = ShortConvolution(sum(self._split), conv_size, **factory)
        self.A_log = nn.Parameter(torch.empty(num_v_heads, **factory))
        self.dt_bias = nn.Parameter(torch.empty(num_v_heads, **factory))
        self.norm = nn.RMSNorm(head_v_dim, eps=norm_eps, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights and rates of decay."""
        super().reset_parameters()
        reset_decay(self.A_log, self.dt_bias)
        self.norm.reset_parameters()

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv_proj(x), self.gate_proj(x), self.beta_proj(x), self.decay_proj(x)

    def _operands(self, mixed: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        _, b, a = others
        heads, group = self.num_heads, self.num_v_heads // self.num_heads
        q, k, v = mixed.split(self._split, -1)
        beta = torch.sigmoid(b) * (2 if self.allow_neg_eigval else 1)
        g = log_decay(a.to(work_dtype(a.dtype)), self.A_log, self.dt_bias)
        return (
            by_heads(q, heads, 1), by_heads(k, heads, 1), by_heads(v, heads, group),
            rates_by_heads(g, heads, group), rates_by_heads(beta, heads, group),
        )  # fmt: skip

    def _finish(self, o: Tensor, mixed: Tensor, *others: Tensor) -> Tensor:
        z = others[0]
        by_head = o.unflatten(-1, (self.num_v_heads, self.head_v_dim))
        by_head = self.norm(by_head.to(self.norm.weight.dtype))  # autocast may have made it less
        return by_head.flatten(-2) * functional.silu(z)

    def _memory(self, batch: int) -> State:
        group = self.num_v_heads // self.num_heads
        return State(self._zeros(batch, self.num_heads, group, self.head_dim, self.head_v_dim))


class GatedAttention(ConvolvedAttention):
    """Linear attention whose memory decays, in Mamba-2's style: a state space model.

    ``s_i = exp(g_i) s_{i-1} + k_i (dt_i v_i)^T``, ``o_i = s_i^T q_i + D v_i``, with q, k and v
    (there named C, B and x) from a short convolution and silu,
    ``dt_i = softplus(W_dt x_i + dt_bias)`` and ``g_i = -exp(A_log) dt_i``, one number each a
    head.  The output is ``W_o norm(o_i * silu(W_z x_i))``, norm the root mean square
    by groups.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        Heads of values, of gates and of the memory.
    expand : int, default 2
        All heads together have expand * embed_dim numbers.
    state_dim : int, default 64
        The width of a query or key.
    num_groups : int, default 1
        Heads of queries and keys, a divisor of num_heads.
    conv_size : int, default 4
        The length of the convolution's filters.
    norm_eps : float, default 1e-5
        Added to the mean square by the norm.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError
        If an argument has another type.
    ValueError
        If a number of heads or a width is below 1, expand * embed_dim no multiple of num_heads,
        num_heads none of num_groups, or dropout no probability.

    Notes
    -----
    Time and memory O(n), and O(1) a token for `step`.  A state is a `ConvolvedState`, its
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

    _operator = Operator(gated, gated_step)
    _shown = ("embed_dim", "num_heads", "num_groups", "state_dim", "head_dim")

    @_check.keywords
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
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name, factory = self._name, {"device": device, "dtype": dtype}
        width = _check.integer(name, "expand", expand) * _check.integer(
            name, "embed_dim", embed_dim
        )
        _check.multiple(name, ("num_heads", num_heads), ("num_groups", num_groups))
        head_dim = _check.multiple(name, ("expand * embed_dim", width), ("num_heads", num_heads))
        _check.integer(name, "state_dim", state_dim)
        _check.positive(name, "norm_eps", norm_eps, zero=True)
        super().__init__(embed_dim, width, bias, dropout, **factory)
        self.num_heads, self.num_groups = num_heads, num_groups
        self.state_dim, self.head_dim = state_dim, head_dim
        self._split = (width, num_groups * state_dim, num_groups * state_dim)
        self._options = {}
        self.vkq_proj = nn.Linear(embed_dim, sum(self._split), bias=bias, **factory)
        self.gate_proj = nn.Linear(embed_dim, width, bias=bias, **factory)
        self.decay_proj = nn.Linear(embed_dim, num_heads, bias=bias, **factory)
        self.conv = ShortConvolution(sum(self._split), conv_size, bias=True, **factory)
        self.A_log = nn.Parameter(torch.empty(num_heads, **factory))
        self.dt_bias = nn.Parameter(torch.empty(num_heads, **factory))
        self.D = nn.Parameter(torch.empty(num_heads, **factory))
        self.norm = nn.RMSNorm(width, eps=norm_eps, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights and rates of decay."""
        super().reset_parameters()
        reset_decay(self.A_log, self.dt_bias)
        nn.init.ones_(self.D)
        self.norm.reset_parameters()

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.vkq_proj(x), self.gate_proj(x), self.decay_proj(x)

    def _operands(self, mixed: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        a = others[1]
        groups, group = self.num_groups, self.num_heads // self.num_groups
        v, k, q = mixed.split(self._split, -1)
        dt = -log_decay(a.to(work_dtype(a.dtype)), 0.0, self.dt_bias)  # softplus
        g = rates_by_heads(-torch.exp(self.A_log.to(dt.dtype)) * dt, groups, group)
        dt = rates_by_heads(dt, groups, group)[..., None].to(v.dtype)
        return (
            by_heads(q, groups, 1), by_heads(k, groups, 1), dt * by_heads(v, groups, group), g,
        )  # fmt: skip

    def _finish(self, o: Tensor, mixed: Tensor, *others: Tensor) -> Tensor:
        v = mixed[..., : self._split[0]].unflatten(-1, (self.num_heads, self.head_dim))
        o = o + (v * self.D[:, None]).flatten(-2)
        return self._normalized(o * functional.silu(others[0]))

    def _normalized(self, o: Tensor) -> Tensor:
        """o of root mean square 1 by groups, times the norm's weights."""
        weight = self.norm.weight
        by_group = o.to(weight.dtype).unflatten(-1, (self.num_groups, -1))
        normalized = functional.rms_norm(by_group, by_group.shape[-1:], None, self.norm.eps)
        return normalized.flatten(-2) * weight

    def _memory(self, batch: int) -> State:
        group = self.num_heads // self.num_groups
        return State(self._zeros(batch, self.num_groups, group, self.state_dim, self.head_dim))
