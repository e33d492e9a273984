"""The block of Mamba: a short convolution, and a selective state space model with a gate."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._core.conversions import work_dtype
from . import _arguments
from .conv import ConvolvedAttention, DepthwiseConvolution, ShortConvolution, draw_time_steps


class Mamba(ConvolvedAttention):
    """The block of Mamba, whose memory decays at rates that each token selects.

    ``[u, z] = W_in x``, ``u`` goes through a short convolution and silu, ``[r, B, C] = W_x u`` and
    ``dt = softplus(W_dt r + dt_bias)``; then ``h_i = exp(dt_i A) h_{i-1} + dt_i u_i B_i^T`` with
    ``A = -exp(A_log)``, and the output is ``W_out ((h_i C_i + D u_i) * silu(z_i))``.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    expand : int, default 2
        The block has expand * embed_dim channels.
    state_dim : int, default 16
        The numbers in the memory of a channel.
    dt_rank : int, optional
        The width of r, from which time steps are projected; embed_dim / 16, rounded up, by default.
    conv_size : int, default 4
        The length of the convolution's filters.
    conv_bias : bool, default True
        Whether the convolution has a bias.
    bias, dropout, device, dtype
        As in `Attention`; bias is that of in_proj and out_proj.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    Time and memory O(n), and O(1) per token for `step`.  A state is a `ConvolvedState`, its
    memory's s (batch, expand * embed_dim, state_dim).

    Parameters have the names and shapes of Transformers' ``MambaMixer`` and of the mamba_ssm
    package's ``Mamba``: each loads the other's state_dict.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    algorithm 2, section 3.4 (the block) and section 3.6 (initial weights)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import Mamba
    >>> layer, x = Mamba(64), torch.ones(2, 10, 64)
    >>> y, state = layer(x, return_state=True)
    >>> y.shape, state.memory.s.shape
    (torch.Size([2, 10, 64]), torch.Size([2, 128, 16]))
    """

    _operator = "selective_scan"
    _shown = ("embed_dim", "channels", "state_dim", "dt_rank")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        *,
        expand: int = 2,
        state_dim: int = 16,
        dt_rank: int | None = None,
        conv_size: int = 4,
        conv_bias: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        channels = expand * embed_dim
        dt_rank = -(-embed_dim // 16) if dt_rank is None else dt_rank
        super().__init__(embed_dim, channels, bias, dropout, **factory)
        self.channels, self.state_dim, self.dt_rank = channels, state_dim, dt_rank
        self._options, self._shape = {"softplus": True}, (channels, state_dim)
        self.in_proj = nn.Linear(embed_dim, 2 * channels, bias=bias, **factory)
        self.conv1d = DepthwiseConvolution(channels, conv_size, bias=conv_bias, **factory)
        self.x_proj = nn.Linear(channels, dt_rank + 2 * state_dim, bias=False, **factory)
        self.dt_proj = nn.Linear(dt_rank, channels, **factory)
        self.A_log = nn.Parameter(torch.empty(channels, state_dim, **factory))
        self.D = nn.Parameter(torch.empty(channels, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights as the paper does.

        A is -1, -2, ..., -state_dim in each channel, D is 1, and the time steps softplus(dt_bias)
        are in [0.001, 0.1], uniform in their logarithms.  Projections and the convolution are
        drawn as PyTorch does, those of time steps within 1 / sqrt(dt_rank); biases are 0.
        """
        for proj in (self.in_proj, self.x_proj, self.out_proj):
            proj.reset_parameters()
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)
        self.conv1d.reset_parameters()
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        draw_time_steps(self.dt_proj.bias)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, self.state_dim + 1).log())
        nn.init.ones_(self.D)

    @property
    def conv(self) -> ShortConvolution:  # type: ignore[override]  # conv1d is the published name
        return self.conv1d

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.in_proj(x).chunk(2, -1)

    def _convolved(self, mixed: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        r, B, C = self.x_proj(mixed).split((self.dt_rank, self.state_dim, self.state_dim), -1)
        # The scan adds the bias of dt_proj, in the dtype that it computes in.
        dt = functional.linear(r, self.dt_proj.weight)
        work = work_dtype(mixed.dtype)
        A = -torch.exp(self.A_log.to(work))
        return mixed, dt, A, B, C, self.D.to(work), others[0], self.dt_proj.bias.to(work)

    def _finish(self, o: Tensor, mixed: Tensor, *others: Tensor) -> Tensor:
        return o
