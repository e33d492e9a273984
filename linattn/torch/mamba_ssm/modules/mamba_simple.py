"""The layer of Mamba."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...causal_conv1d import causal_conv1d_update
from ...nn.conv import draw_time_steps
from ...operators import causal_conv1d, selective_scan
from ..ops.triton.selective_state_update import selective_state_update
from ._mixer import Mixer, depthwise, mark

__all__ = ["Mamba"]


class Mamba(Mixer):
    """The layer of Mamba, with the parameters and arguments of mamba_ssm's.

    ``[x, z] = W_in u``, x goes through a short convolution and silu, ``[r, B, C] = W_x x`` and
    ``dt = softplus(W_dt r + dt_bias)``; then the selective scan, the gate z and ``W_out``.

    Parameters
    ----------
    d_model : int
        The width of a token.
    d_state : int
        The numbers in the memory of a channel.
    d_conv : int
        The length of the convolution's filters.
    expand : float
        The layer has expand * d_model channels.
    dt_rank : int or 'auto'
        The width of r; d_model / 16, rounded up, if 'auto'.
    dt_min, dt_max : float
        New time steps are in this range.
    dt_init : {'random', 'constant'}
        How the projection to the time steps is drawn.
    dt_scale : float
        The scale of this projection.
    dt_init_floor : float
        New time steps are at least this.
    conv_bias, bias : bool
        Whether the convolution, and the projections, have a bias.
    use_fast_path : bool
        Ignored: there is a single path.
    layer_idx : int, optional
        The number of the layer, under which ``inference_params`` holds its states.
    device, dtype
        Of the parameters; A_log and D are float32.

    Raises
    ------
    ValueError
        If dt_init is unknown.

    Notes
    -----
    State dicts are those of mamba_ssm's Mamba, and of Transformers' ``MambaMixer``.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    algorithm 2 and section 3.4

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm import Mamba
    >>> layer = Mamba(d_model=32)
    >>> layer(torch.ones(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: float = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else int(dt_rank)
        self.use_fast_path, self.layer_idx = use_fast_path, layer_idx
        self._state_shape = self.d_inner, d_state
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias, **factory)
        self.conv1d = depthwise(self.d_inner, d_conv, conv_bias, device, dtype)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **factory)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, **factory)
        self._draw_dt_proj(dt_init, self.dt_rank**-0.5 * dt_scale)
        draw_time_steps(self.dt_proj.bias, dt_min, dt_max, dt_init_floor)
        mark(self.dt_proj.bias, "_no_reinit")
        rates = torch.arange(1, d_state + 1, dtype=torch.float32, device=device).log()
        self.A_log = mark(nn.Parameter(rates.repeat(self.d_inner, 1)), "_no_weight_decay")
        self.D = mark(nn.Parameter(torch.ones(self.d_inner, device=device)), "_no_weight_decay")
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **factory)

    def _draw_dt_proj(self, dt_init: str, scale: float) -> None:
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, scale)
        elif dt_init == "random":
            nn.init.uniform_(self.dt_proj.weight, -scale, scale)
        else:
            raise ValueError(f"Mamba: dt_init is {dt_init!r}; expected 'random' or 'constant'")

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:
        """The result (batch, seqlen, d_model) for hidden_states of that shape.

        ``inference_params`` (``utils.generation.InferenceParams``) holds the states of a sequence
        that is continued token by token.
        """
        if inference_params is None:
            return self._sequence(hidden_states)
        states = self._get_states_from_cache(inference_params, len(hidden_states))
        if inference_params.seqlen_offset > 0:
            return self.step(hidden_states, *states)[0]
        return self._sequence(hidden_states, *states)

    def _sequence(
        self, u: Tensor, conv_state: Tensor | None = None, ssm_state: Tensor | None = None
    ) -> Tensor:
        x, z = self.in_proj(u).chunk(2, -1)
        if conv_state is not None:
            self._keep_inputs(conv_state, x)
        weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
        x = causal_conv1d(x, weight, bias, activation="silu").to(x.dtype)
        A, dt, B, C = self._parameters_of(x)
        y: Any = selective_scan(
            x, dt, A, B, C, D=self.D.float(), z=z, dt_bias=self.dt_proj.bias.float(),
            softplus=True, return_state=ssm_state is not None,
        )  # fmt: skip
        if ssm_state is not None:
            y, state = y
            ssm_state.copy_(state.s)
        return self.out_proj(y.to(x.dtype))

    def _parameters_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, and the time steps without their bias, B and C of tokens."""
        r, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], -1)
        return -torch.exp(self.A_log.float()), F.linear(r, self.dt_proj.weight), B, C

    def step(
        self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The result of one token per sequence, (batch, 1, d_model), and the updated states."""
        x, z = self.in_proj(self._one_token(hidden_states)).chunk(2, -1)
        x = causal_conv1d_update(
            x, conv_state, self.conv1d.weight.squeeze(1), self.conv1d.bias, "silu"
        )
        A, dt, B, C = self._parameters_of(x)
        y = selective_state_update(
            ssm_state, x, dt, A, B, C, self.D, z, self.dt_proj.bias, dt_softplus=True
        )
        return self.out_proj(y).unsqueeze(1), conv_state, ssm_state
