"""The layer of Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...causal_conv1d import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_varlen_states
from ...nn.conv import draw_time_steps
from ..ops.triton.layernorm_gated import RMSNorm
from ..ops.triton.selective_state_update import selective_state_update
from ..ops.triton.ssd_combined import NO_LIMIT, mamba_chunk_scan_combined
from ._mixer import Mixer, check_multiples, depthwise, mark

__all__ = ["Mamba2"]


class Mamba2(Mixer):
    """The layer of Mamba-2, with the parameters and arguments of mamba_ssm's.

    ``[z, x, B, C, dt] = W_in u``; x, B and C go through a short convolution and silu; then the
    scan with a rate and a time step per head, a gated norm or the gate, and ``W_out``.

    Parameters
    ----------
    d_model : int
        The width of a token.
    d_state : int
        The width of B and C.
    d_conv : int
        The length of the convolution's filters.
    conv_init : float, optional
        The filters are drawn within [-conv_init, conv_init].
    expand : int
        The layer has expand * d_model channels.
    headdim : int
        The channels of a head.
    d_ssm : int, optional
        The channels that the scan has, all by default; the others are those of a gated MLP.
    ngroups : int
        The groups of B and C.
    A_init_range : (float, float)
        New rates are in this range.
    D_has_hdim : bool
        D has one number per channel, not one per head.
    rmsnorm : bool
        Norm the result of the scan.
    norm_before_gate : bool
        ``norm(y) silu(z)`` if True, ``norm(y silu(z))`` if False.
    dt_min, dt_max, dt_init_floor : float
        New time steps are in [dt_min, dt_max] and at least dt_init_floor.
    dt_limit : (float, float)
        Time steps are at least and at most these, also in ``step``, where mamba_ssm ignores them.
    bias, conv_bias : bool
        Whether the projections, and the convolution, have a bias.
    chunk_size, use_mem_eff_path
        Ignored: they tune GPU kernels.
    layer_idx : int, optional
        The number of the layer, under which ``inference_params`` holds its states.
    process_group : optional
        Not supported: None.
    sequence_parallel : bool
        Ignored.
    device, dtype
        Of the parameters; D is of PyTorch's default dtype.

    Raises
    ------
    NotImplementedError
        If process_group is given.
    ValueError
        If sizes do not divide one another.

    Notes
    -----
    State dicts are those of mamba_ssm's Mamba2, and of Transformers' ``Mamba2Mixer``.

    References
    ----------
    Dao and Gu, "Transformers are SSMs", ICML 2024, section 7

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm import Mamba2
    >>> layer = Mamba2(d_model=32, d_state=8, headdim=16)
    >>> layer(torch.ones(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = NO_LIMIT,
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: Any = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if process_group is not None:
            raise NotImplementedError("Mamba2: process_group is given; expected None")
        factory = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = expand * d_model
        self.headdim, self.ngroups = headdim, ngroups
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        self.nheads = self.d_ssm // headdim
        check_multiples(
            "Mamba2", ("d_ssm", self.d_ssm, "headdim", headdim),
            ("the number of heads", self.nheads, "ngroups", ngroups),
        )  # fmt: skip
        self._state_shape = self.nheads, headdim, d_state
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate = D_has_hdim, rmsnorm, norm_before_gate
        self.dt_limit, self.chunk_size, self.layer_idx = dt_limit, chunk_size, layer_idx
        self.conv_dim = self.d_ssm + 2 * ngroups * d_state
        self.d_mlp = self.d_inner - self.d_ssm
        width = 2 * self.d_inner + 2 * ngroups * d_state + self.nheads
        self.in_proj = nn.Linear(d_model, width, bias=bias, **factory)
        self.conv1d = depthwise(self.conv_dim, d_conv, conv_bias, device, dtype)
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        self.dt_bias = mark(nn.Parameter(torch.empty(self.nheads, **factory)), "_no_weight_decay")
        draw_time_steps(self.dt_bias, dt_min, dt_max, dt_init_floor)
        rates = torch.empty(self.nheads, dtype=torch.float32, device=device)
        rates = rates.uniform_(*A_init_range).log().to(dtype or torch.float32)
        self.A_log = mark(nn.Parameter(rates), "_no_weight_decay")
        skip = torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device)
        self.D = mark(nn.Parameter(skip), "_no_weight_decay")
        if rmsnorm:
            self.norm = RMSNorm(
                self.d_ssm, 1e-5, self.d_ssm // ngroups, norm_before_gate, **factory
            )
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **factory)

    def forward(
        self,
        u: Tensor,
        seqlen: int | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Any = None,
    ) -> Tensor:
        """The result for u (batch, seqlen, d_model), of that shape.

        With ``seqlen`` u is (batch * seqlen, d_model).  ``seq_idx`` (batch, seqlen) numbers packed
        sequences; with ``inference_params`` ``cu_seqlens`` says in addition where they end.
        """
        rows = u if seqlen is None else u.unflatten(0, (-1, seqlen))
        if inference_params is None:
            y = self._sequence(rows, seq_idx, cu_seqlens)
        else:
            batch = len(rows) if cu_seqlens is None else len(cu_seqlens) - 1
            states = self._get_states_from_cache(inference_params, batch)
            if inference_params.seqlen_offset > 0:
                return self.step(u, *states)[0]
            y = self._sequence(rows, seq_idx, cu_seqlens, *states)
        return y if seqlen is None else y.flatten(0, 1)

    def _sequence(
        self, u: Tensor, seq_idx: Tensor | None, cu_seqlens: Tensor | None,
        conv_state: Tensor | None = None, ssm_state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        mlp, z, xBC, dt = self._project(u)
        if conv_state is not None:
            if cu_seqlens is None:
                self._keep_inputs(conv_state, xBC)
            else:
                conv_state.copy_(causal_conv1d_varlen_states(xBC[0], cu_seqlens, self.d_conv))
        xBC = causal_conv1d_fn(
            xBC.mT, self.conv1d.weight.squeeze(1), self.conv1d.bias, seq_idx, activation="silu"
        ).mT
        x, B, C = self._split(xBC)
        keeps = ssm_state is not None
        y: Any = mamba_chunk_scan_combined(
            x, dt, self._rates(), B, C, self.chunk_size, self._skip(),
            None if self.rmsnorm else z.view(x.shape), self.dt_bias, None, seq_idx, cu_seqlens,
            True, self.dt_limit, keeps and cu_seqlens is None, keeps and cu_seqlens is not None,
        )  # fmt: skip
        if ssm_state is not None:
            y, state = y
            ssm_state.copy_(state)
        return self._finish(y.flatten(2), z, mlp)

    def step(
        self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The result of one token per sequence, (batch, 1, d_model), and the updated states."""
        mlp, z, xBC, dt = self._project(self._one_token(hidden_states))
        xBC = causal_conv1d_update(
            xBC, conv_state, self.conv1d.weight.squeeze(1), self.conv1d.bias, "silu"
        )
        x, B, C = self._split(xBC)
        dt = F.softplus(dt.float() + self.dt_bias.float()).clamp(*self.dt_limit)
        one = self._rates()[:, None, None].expand(*self._state_shape)
        D = self._skip()
        y = selective_state_update(
            ssm_state, x, dt[..., None].expand(x.shape), one, B, C,
            D if self.D_has_hdim else D[:, None].expand(x.shape[1:]),
            None if self.rmsnorm else z.view(x.shape),
        )  # fmt: skip
        return self._finish(y.flatten(1), z, mlp).unsqueeze(1), conv_state, ssm_state

    def _project(self, u: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the MLP, z, the inputs of the convolution, and dt."""
        sizes = [2 * self.d_mlp, self.d_ssm, self.conv_dim, self.nheads]
        return tuple(self.in_proj(u).split(sizes, -1))

    def _split(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., nheads, headdim), B and C (..., ngroups, dstate)."""
        keys = self.ngroups * self.d_state
        x, B, C = xBC.split([self.d_ssm, keys, keys], -1)
        B, C = (y.unflatten(-1, (self.ngroups, self.d_state)) for y in (B, C))
        return x.unflatten(-1, (self.nheads, self.headdim)), B, C

    def _rates(self) -> Tensor:
        return -torch.exp(self.A_log.float())

    def _skip(self) -> Tensor:
        return self.D.unflatten(0, (-1, self.headdim)) if self.D_has_hdim else self.D

    def _finish(self, y: Tensor, z: Tensor, mlp: Tensor) -> Tensor:
        if self.rmsnorm:
            y = self.norm(y, z)
        if self.d_mlp:
            gate, up = mlp.chunk(2, -1)
            y = torch.cat([F.silu(gate) * up, y], -1)
        return self.out_proj(y)
