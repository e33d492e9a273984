"""The short causal convolution of gated models, and the base class of layers that have one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from ..._core.summaries import shown_fields
from ..._states.state_arrays import State
from .._core.conversions import work_dtype
from .._core.fused_steps import by_heads
from ..operators import causal_conv1d, causal_conv1d_step
from . import _arguments
from ._attention_layer import Attention
from ._padding import padding


class ShortConvolution(nn.Module):
    """Causal convolution of each channel with its own short filter, then silu.

    ``o_t = silu(bias + sum_j weight[:, w-1-j] x_{t-j})``.

    Parameters
    ----------
    channels : int
        c, the width of a token.
    size : int, default 4
        w, the length of a filter.
    bias : bool, default False
        Whether channels have a bias.
    activation : {None, 'silu'}, default 'silu'
        Applied to the sum.
    device, dtype
        Of the parameters.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, channels or size is below 1, or activation is unknown.

    Notes
    -----
    2 w floating-point operations per number, and about 25 for silu.  A state is a tensor of the
    last w - 1 inputs, (batch, c, w - 1).

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    section 3.4

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import ShortConvolution
    >>> layer, x = ShortConvolution(6), torch.ones(2, 10, 6)
    >>> y, state = layer(x, return_state=True)
    >>> y.shape, state.shape
    (torch.Size([2, 10, 6]), torch.Size([2, 6, 3]))
    """

    bias: nn.Parameter | None

    @_arguments.keywords
    def __init__(
        self,
        channels: int,
        size: int = 4,
        *,
        bias: bool = False,
        activation: str | None = "silu",
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        name = type(self).__name__
        super().__init__()
        self.channels, self.size = channels, size
        if activation not in (None, "silu"):
            raise ValueError(f"{name}: activation is {activation!r}; expected None or 'silu'")
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(channels, size, **factory))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(channels, **factory)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights as `torch.nn.Conv1d` does."""
        for x in (self.weight, self.bias):
            if x is not None:
                nn.init.uniform_(x, -1 / math.sqrt(self.size), 1 / math.sqrt(self.size))

    @property
    def _filters(self) -> Tensor:
        """The filters, (c, w)."""
        return self.weight

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, size={self.size}, bias={self.bias is not None}, "
            f"activation={self.activation!r}"
        )

    @_arguments.keywords
    def forward(
        self,
        x: Tensor,
        *,
        key_lengths: Any = None,
        state: Tensor | None = None,
        return_state: bool = False,
    ) -> Any:
        """The convolution of whole sequences (batch, n, c), and the state after the last token.

        ``key_lengths (batch,)`` are the numbers of tokens; outputs past them are undefined.
        """
        name = type(self).__name__
        _arguments.tokens(name, x, self.channels)
        pads = padding(name, x, key_lengths, None)
        y = causal_conv1d(
            x, self._filters, self.bias, activation=self.activation, initial_state=state,
            return_state=return_state and pads is None,
        )  # fmt: skip
        if pads is None or not return_state:
            return y
        if state is None:
            state = self.init_state(x.shape[0])
        inputs = torch.cat([state, x.mT.to(state.dtype)], -1)
        window = torch.arange(self.size - 1, device=x.device)
        place = (pads.lengths[:, None] + window)[:, None].expand(-1, self.channels, -1)
        return y, inputs.gather(-1, place)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output of one token per sequence, (batch, c), and the next state."""
        _arguments.token(type(self).__name__, x, self.channels)
        return causal_conv1d_step(x, self._filters, state, self.bias, activation=self.activation)

    def init_state(self, batch: int) -> Tensor:
        """The state of ``batch`` sequences before their first token: zeros."""
        shape, weight = (batch, self.channels, self.size - 1), self.weight
        return torch.zeros(shape, device=weight.device, dtype=work_dtype(weight.dtype))


class DepthwiseConvolution(ShortConvolution):
    """`ShortConvolution` with the weights of `torch.nn.Conv1d`, (c, 1, w)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.weight = nn.Parameter(self.weight.detach().unsqueeze(1))

    @property
    def _filters(self) -> Tensor:
        return self.weight.squeeze(1)


def draw_time_steps(
    bias: Tensor, least: float = 1e-3, most: float = 0.1, floor: float = 0.0
) -> None:
    """Draw biases of which softplus is in [least, most], uniform in its logarithm.

    Those below ``floor`` are raised to it.
    """
    with torch.no_grad():
        dt = torch.empty_like(bias).uniform_(math.log(least), math.log(most)).exp_().clamp_(floor)
        bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus


class ConvolvedState(NamedTuple):
    """The state of a layer with a short convolution.

    Parameters
    ----------
    conv : tensor, shape (batch, c, w - 1)
        The convolution's state.
    memory : linattn.State
        The recurrence's state.
    """

    conv: Tensor
    memory: State

    def __repr__(self) -> str:
        return shown_fields(self)


class ConvolvedAttention(Attention):
    """A layer whose operands come through one `ShortConvolution`, with decays and a norm."""

    _kind = ConvolvedState
    conv: ShortConvolution
    norm: nn.RMSNorm
    #: Projections of x, of which the first is convolved.
    _projections: tuple[str, ...]
    #: The shape of a sequence's memory.
    _shape: tuple[int, ...]
    #: The function of what is between its projections, for one token, if there is one.
    _fused_step = ""

    def _add_memory(
        self, heads: int, channels: int, conv_size: int, conv_bias: bool, norm: nn.RMSNorm,
        **factory: Any,
    ) -> None:  # fmt: skip
        self.conv = ShortConvolution(channels, conv_size, bias=conv_bias, **factory)
        self.A_log = nn.Parameter(torch.empty(heads, **factory))
        self.dt_bias = nn.Parameter(torch.empty(heads, **factory))
        self.norm = norm

    def reset_parameters(self) -> None:
        """Draw new weights and decay rates.

        The rates exp(A_log) are in [1, 16], and the time steps softplus(dt_bias) in [0.001, 0.1],
        uniform in their logarithms, as in Mamba-2.
        """
        super().reset_parameters()
        self.conv.reset_parameters()
        with torch.no_grad():
            self.A_log.uniform_(1, 16).log_()
        draw_time_steps(self.dt_bias)
        self.norm.reset_parameters()

    def _convolved(self, mixed: Tensor, *others: Tensor) -> tuple[Any, ...]:
        """The operator's operands from the convolution's output and the other projections."""
        raise NotImplementedError

    def _finish(self, o: Tensor, mixed: Tensor, *others: Tensor) -> Tensor:
        """The input of `out_proj`."""
        raise NotImplementedError

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        modules = self._modules  # faster than attributes
        return tuple([modules[name](x) for name in self._projections])  # type: ignore[misc]

    def _sequence(
        self, x: Tensor, lengths: Tensor | None, state: Any, return_state: bool
    ) -> tuple[Tensor, Any]:
        conv: Any
        conv, memory = state or (None, None)
        mixed, *others = self._project(x)
        mixed = self.conv(mixed, key_lengths=lengths, state=conv, return_state=return_state)
        if return_state:
            mixed, conv = mixed
        operands = self._convolved(mixed, *others)
        o, memory = self._attend(operands, lengths, memory, return_state)
        state = ConvolvedState(conv, memory) if return_state else None
        return self._finish(o, mixed, *others), state

    def _token(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        projected = self._project(x)
        fused = self._fused(projected, state) if self._fused_step else None
        if fused is not None:
            return fused
        mixed, *others = projected
        mixed, conv = self.conv.step(mixed, state.conv)
        o, memory = self._attend_token(self._convolved(mixed, *others), state.memory)
        return self._finish(o, mixed, *others), ConvolvedState(conv, memory)

    def _fused(self, projected: tuple[Tensor, ...], state: Any) -> tuple[Tensor, Any] | None:
        """The input of `out_proj` and the state, in one call; None with gradients or hooks."""
        conv, norm = self._modules["conv"], self._modules["norm"]
        if type(conv) is not ShortConvolution or type(norm) is not nn.RMSNorm:
            return None
        own, of_conv = self._parameters, conv._parameters
        try:
            weights = {
                "A_log": own["A_log"], "dt_bias": own["dt_bias"], "weight": of_conv["weight"],
                "bias": of_conv["bias"], "norm_weight": norm._parameters["weight"],
            }  # fmt: skip
        except KeyError:  # pruned or parametrised: computed from other parameters
            return None
        if norm._forward_hooks or norm._forward_pre_hooks or torch.compiler.is_compiling():
            return None
        operands, options = self._fused_operands(*projected)
        result = by_heads(
            self._fused_step, operands, (state.conv, state.memory.s), norm_eps=norm.eps,
            **weights, **options,
        )  # fmt: skip
        if result is NotImplemented:
            return None
        o, (inputs, memory) = result
        return o, ConvolvedState(inputs, State(memory))

    def _fused_operands(self, *projected: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """The operands of the fused step, and options of its own."""
        raise NotImplementedError

    def _first(self, batch: int) -> ConvolvedState:
        return ConvolvedState(self.conv.init_state(batch), State(self._zeros(batch, *self._shape)))
