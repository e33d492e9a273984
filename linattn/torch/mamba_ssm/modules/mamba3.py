"""The layer of Mamba-3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._core.conversions import kept, work_dtype
from ..._core.seq_idx import packing
from ...nn.conv import draw_time_steps
from .._axes import check_bounds
from .._mamba3 import Rows, gate, token, whole
from ..ops.triton.layernorm_gated import RMSNorm
from ..ops.triton.mamba3.mamba3_mimo_rotary_step import apply_rotary_qk_inference_fwd
from ._mixer import Stateful, check_multiples, mark

__all__ = ["Mamba3"]


def heavy_tail_activation(x: Tensor) -> Tensor:
    """1 + x where x >= 0, and 1 / (1 - x) elsewhere.

    Examples
    --------
    >>> import torch
    >>> heavy_tail_activation(torch.tensor([-3.0, 0.0, 3.0]))
    tensor([0.2500, 1.0000, 4.0000])
    """
    return x.clamp(min=0) + 1 / (1 - x.clamp(max=0))


#: What makes the rates positive, by the value of ``A_activation``.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "heavy_tail": heavy_tail_activation,
    "softplus": F.softplus,
}


class Inputs(NamedTuple):
    """What a layer projects tokens to."""

    z: Tensor  #: (..., nheads, headdim), as is x
    x: Tensor
    B: Tensor  #: (..., mimo_rank, ngroups, d_state), as is C
    C: Tensor
    dt: Tensor  #: (..., nheads), as are A and trap
    A: Tensor
    trap: Tensor
    angles: Tensor  #: (..., nheads, num_rope_angles)


class Mamba3(Stateful):
    """The layer of Mamba-3, with the parameters and arguments of mamba_ssm's.

    ``[z, x, B, C, dt, A, trap, angles] = W_in u``; B and C are normed; then the scan of
    ``mamba3_siso_combined`` or ``mamba3_mimo``, a gate or a gated norm, and ``W_out``.

    Parameters
    ----------
    d_model : int
        The width of a token.
    d_state : int
        The width of B and C, which is even.
    expand : int
        The layer has expand * d_model channels.
    headdim : int
        The channels of a head.
    ngroups : int
        The groups of B and C.
    rope_fraction : {0.5, 1.0}
        The part of the channels of B and C that are rotated.
    dt_min, dt_max, dt_init_floor : float
        New time steps are in [dt_min, dt_max] and at least dt_init_floor.
    A_floor : float
        The least rate.
    is_outproj_norm : bool
        Norm the result of each head before the gate.
    is_mimo : bool
        Whether a token has mimo_rank keys, values and queries, or one.
    mimo_rank : int
        Their number.
    fuse_pregate_headwise_norm, chunk_size, dropout
        Ignored: the first two tune GPU kernels.
    layer_idx : int, optional
        The number of the layer, under which ``inference_params`` holds its states.
    n_layer : int, optional
        Ignored.
    device, dtype
        Of the parameters; biases, D and the weights of ranks are of PyTorch's default dtype.
    **kwargs
        ``A_activation="softplus"`` takes the softplus for the rates, as mamba_ssm 2.3.2.post1 and
        earlier do; by default it is ``"heavy_tail"``, that of mamba_ssm's sources since June 2026.
        Others are ignored.

    Raises
    ------
    ValueError
        If sizes do not divide one another, or an option is unknown.

    Notes
    -----
    State dicts are those of mamba_ssm's Mamba3, and of fla's, whose rates are a softplus.

    References
    ----------
    Lahoti et al., "Mamba-3: Improved Sequence Modeling using State Space Principles", 2026

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm import Mamba3
    >>> layer = Mamba3(d_model=32, d_state=8, headdim=16, is_mimo=True, mimo_rank=2)
    >>> layer(torch.ones(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        rope_fraction: float = 0.5,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        A_floor: float = 1e-4,
        is_outproj_norm: bool = False,
        is_mimo: bool = False,
        mimo_rank: int = 4,
        fuse_pregate_headwise_norm: bool = True,
        chunk_size: int = 64,
        dropout: float = 0.0,
        layer_idx: int | None = None,
        n_layer: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.expand, self.headdim = d_model, d_state, expand, headdim
        self.chunk_size, self.layer_idx, self.A_floor = chunk_size, layer_idx, A_floor
        self.is_outproj_norm, self.is_mimo = is_outproj_norm, is_mimo
        self.mimo_rank = mimo_rank if is_mimo else 1
        self.d_inner = int(expand * d_model)
        self.nheads, self.num_bc_heads = self.d_inner // headdim, ngroups
        self.num_rope_angles = int(d_state * rope_fraction) // 2
        self.A_activation = kwargs.get("A_activation", "heavy_tail")
        self._check_options(rope_fraction)
        self._sizes = [
            self.d_inner, self.d_inner, *2 * (d_state * ngroups * self.mimo_rank,),
            *3 * (self.nheads,), self.num_rope_angles,
        ]  # fmt: skip
        self.in_proj = nn.Linear(d_model, sum(self._sizes), bias=False, **factory)
        self.dt_bias = mark(
            nn.Parameter(torch.empty(self.nheads, dtype=torch.float32, device=device)),
            "_no_weight_decay",
        )
        draw_time_steps(self.dt_bias, dt_min, dt_max, dt_init_floor)
        keys = self.nheads, self.mimo_rank, d_state
        self.B_bias, self.C_bias = (
            nn.Parameter(torch.ones(keys, dtype=torch.float32, device=device)) for _ in "BC"
        )
        self.B_norm, self.C_norm = (RMSNorm(d_state, eps=1e-5, **factory) for _ in "BC")
        if is_mimo:
            values = torch.ones(self.nheads, mimo_rank, headdim, device=device)
            self.mimo_x, self.mimo_z, self.mimo_o = (
                nn.Parameter(values / divisor) for divisor in (mimo_rank, 1, mimo_rank)
            )
        self.D = mark(nn.Parameter(torch.ones(self.nheads, device=device)), "_no_weight_decay")
        if is_outproj_norm:
            self.norm = RMSNorm(self.d_inner, 1e-5, headdim, True, **factory)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False, **factory)

    def _check_options(self, rope_fraction: float) -> None:
        check_multiples(
            "Mamba3", ("expand * d_model", self.d_inner, "headdim", self.headdim),
            ("the number of heads", self.nheads, "ngroups", self.num_bc_heads),
            ("d_state", self.d_state, "2", 2),
        )  # fmt: skip
        for name, option, known in (
            ("rope_fraction", rope_fraction, (0.5, 1.0)),
            ("A_activation", self.A_activation, tuple(ACTIVATIONS)),
        ):
            if option not in known:
                raise ValueError(f"Mamba3: {name} is {option!r}; expected one of {known}")
        if self.mimo_rank < 1 or not self.num_rope_angles:
            raise ValueError(
                f"Mamba3: mimo_rank is {self.mimo_rank}, with {self.num_rope_angles} angles; "
                "expected at least 1 of both"
            )

    def forward(
        self,
        u: Tensor,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Any = None,
    ) -> Tensor:
        """The result for u (batch, seqlen, d_model), of that shape.

        ``cu_seqlens`` are the bounds of sequences in the only row; without it ``seq_idx`` (batch,
        seqlen) may number sequences.  With ``inference_params``, later calls take one token of
        each sequence.
        """
        packed = None
        if cu_seqlens is None and seq_idx is not None:
            packed = packing("Mamba3", seq_idx, *u.shape[:2])
        rows = u
        if packed is not None:
            rows, cu_seqlens = u.flatten(0, 1)[None], packed.bounds
        if inference_params is None:
            return self._sequence(rows, cu_seqlens)[0].view(u.shape)
        batch = len(u) if cu_seqlens is None or packed is not None else len(cu_seqlens) - 1
        states = self._get_states_from_cache(inference_params, batch)
        if inference_params.seqlen_offset > 0:
            return self.step(self._one_token(u), *states)[0].unsqueeze(1)
        y, after = self._sequence(rows, cu_seqlens)
        for state, x in zip(states, after, strict=True):
            state.copy_(x if packed is None else x[packed.last])
        return y.view(u.shape)

    def _sequence(self, u: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result, and the states after each sequence."""
        if cu_seqlens is not None:
            check_bounds("Mamba3", cu_seqlens, *u.shape[:2])
        i = self._inputs(u)
        rows = Rows(len(u), u.shape[1], cu_seqlens)
        y, after = whole(
            i.C, i.B, self._values(i.x), (i.A * i.dt).mT, i.dt.mT, i.trap.mT, self.C_bias,
            self.B_bias, i.angles, self.D, None, rows, not self.is_mimo,
        )  # fmt: skip
        value = rows.last(i.x.flatten(0, 1).transpose(0, 1))
        return self._finish(y, i), (after.angles, after.s, after.k, value)

    def step(
        self, u: Tensor, angle_state: Tensor, ssm_state: Tensor, k_state: Tensor, v_state: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """The result of one token per sequence, (batch, d_model), and the updated states.

        States are those of `allocate_inference_cache`, which are written to.
        """
        i = self._inputs(u)
        states = angle_state, ssm_state, k_state, v_state
        angles, s, k0, x0 = kept(states, i.x)
        repeats = self.nheads // self.num_bc_heads
        C, B = (x.repeat_interleave(repeats, 2) for x in (i.C, i.B))
        C, B, angles = apply_rotary_qk_inference_fwd(
            C, B, angles, i.angles, i.dt, self.C_bias.transpose(0, 1), self.B_bias.transpose(0, 1),
            rotate_pairwise=not self.is_mimo,
        )  # fmt: skip
        work = i.dt.dtype
        in_place = s is ssm_state and s.dtype is work and s.is_contiguous()
        y, s = token(
            s.to(work), k0.to(work), self._values(x0), C, B, self._values(i.x), i.A * i.dt, i.dt,
            i.trap.sigmoid(), self.D, in_place,
        )  # fmt: skip
        for state, x in zip(states, (angles, s, B, i.x), strict=True):
            if x is not state:
                state.copy_(x)
        return self._finish(y, i), *states

    def _inputs(self, u: Tensor) -> Inputs:
        z, x, B, C, dt, A, trap, angles = self.in_proj(u).split(self._sizes, -1)
        work = work_dtype(u.dtype)
        z, x = (y.unflatten(-1, (self.nheads, self.headdim)) for y in (z, x))
        B, C = (y.to(work).unflatten(-1, (self.mimo_rank, self.num_bc_heads, -1)) for y in (B, C))
        rates = ACTIVATIONS[self.A_activation](A.to(work)).clamp(min=self.A_floor)
        dt = F.softplus(dt.to(work) + self.dt_bias.to(work))
        angles = angles.unsqueeze(-2).expand(*angles.shape[:-1], self.nheads, -1)
        return Inputs(z, x, self.B_norm(B), self.C_norm(C), dt, -rates, trap.to(work), angles)

    def _values(self, x: Tensor) -> Tensor:
        """x (..., nheads, headdim) as (..., mimo_rank, nheads, headdim)."""
        x = x.to(work_dtype(x.dtype)).unsqueeze(-3)
        return x * self.mimo_x.transpose(0, 1) if self.is_mimo else x

    def _finish(self, y: Tensor, i: Inputs) -> Tensor:
        """The result of y (..., mimo_rank, nheads, headdim)."""
        z_weight, out_weight = None, None
        if self.is_mimo:
            z_weight, out_weight = (x.transpose(0, 1) for x in (self.mimo_z, self.mimo_o))
        if self.is_outproj_norm:
            gates = i.z.to(y.dtype).unsqueeze(-3)
            gates = gates if z_weight is None else gates * z_weight
            y = self.norm(y.flatten(-2), gates.expand(y.shape).flatten(-2)).view(y.shape)
            y = gate(y, None, None, out_weight)
        else:
            y = gate(y, i.z, z_weight, out_weight)
        y = y if self.is_mimo else y.squeeze(-3)
        return self.out_proj(y.flatten(-2).to(i.x.dtype))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, device: Any = None,
        dtype: torch.dtype | None = None, inplace_state: Any = None, **kwargs: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The states before the first token.

        angle_state (batch, nheads, num_rope_angles) and ssm_state (batch, nheads, headdim, d_state)
        are float32 or float64; k_state (batch, mimo_rank, nheads, d_state) and v_state (batch,
        nheads, headdim) are of the parameters' dtype by default.
        """
        weight = self.in_proj.weight
        dtype = weight.dtype if dtype is None else dtype
        work = work_dtype(weight.dtype)
        return tuple(
            weight.new_zeros(batch_size, *shape, device=device, dtype=kind)
            for shape, kind in (
                ((self.nheads, self.num_rope_angles), work),
                ((self.nheads, self.headdim, self.d_state), work),
                ((self.mimo_rank, self.nheads, self.d_state), dtype),
                ((self.nheads, self.headdim), dtype),
            )
        )
