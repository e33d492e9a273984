"""What the layers share: their states, and the convolution of Mamba and Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Stateful(nn.Module):
    """A layer that generates from states, which it updates in place."""

    layer_idx: int | None

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int) -> tuple[Tensor, ...]:
        """The states before the first token."""
        raise NotImplementedError

    def _get_states_from_cache(
        self, inference_params: Any, batch_size: int, initialize_states: bool = False
    ) -> tuple[Tensor, ...]:
        name = type(self).__name__
        if self.layer_idx is None:
            raise ValueError(f"{name}: layer_idx is None; expected a number with inference_params")
        cache = inference_params.key_value_memory_dict
        if self.layer_idx not in cache:
            cache[self.layer_idx] = self.allocate_inference_cache(batch_size, 0)
        states: tuple[Tensor, ...] = cache[self.layer_idx]
        if len(states[0]) != batch_size:
            raise ValueError(
                f"{name}: inference_params has states of {len(states[0])} sequences; expected "
                f"{batch_size}"
            )
        if initialize_states:
            for x in states:
                x.zero_()
        return states

    def _one_token(self, hidden_states: Tensor) -> Tensor:
        """The token of each sequence, (batch, d_model)."""
        if hidden_states.ndim != 3 or hidden_states.shape[1] != 1:
            raise ValueError(
                f"{type(self).__name__}: hidden_states has shape {tuple(hidden_states.shape)}; "
                "expected (batch, 1, d_model) after the first tokens"
            )
        return hidden_states[:, 0]


class Mixer(Stateful):
    """A layer with a short convolution, whose states are those of the convolution and its memory.

    Subclasses set these attributes:
    """

    d_conv: int
    conv1d: nn.Conv1d
    in_proj: nn.Linear
    _state_shape: tuple[int, ...]  #: of the memory of one sequence

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, ...]:
        """The states before the first token, of the parameters' dtype by default.

        conv_state is (batch, channels, d_conv); ssm_state is the memory of each sequence.
        """
        weight = self.in_proj.weight
        like = weight.new_empty(0, dtype=dtype)
        conv = like.new_zeros(batch_size, self.conv1d.in_channels, self.d_conv)
        return conv, like.new_zeros(batch_size, *self._state_shape)

    def _keep_inputs(self, conv_state: Tensor, x: Tensor) -> None:
        """Write the last inputs (batch, seqlen, channels) to the convolution's state."""
        conv_state.copy_(F.pad(x.mT, (self.d_conv - x.shape[1], 0)))


def depthwise(
    channels: int, width: int, bias: bool, device: Any, dtype: torch.dtype | None
) -> nn.Conv1d:
    """The parameters of a short convolution."""
    return nn.Conv1d(
        channels, channels, width, groups=channels, padding=width - 1, bias=bias, device=device,
        dtype=dtype,
    )  # fmt: skip


def check_multiples(name: str, *pairs: tuple[str, int, str, int]) -> None:
    """Raise an error unless each number is a multiple of the other; both come after their names."""
    for argument, x, other, size in pairs:
        if not size or x < size or x % size:
            raise ValueError(f"{name}: {argument} is {x}; expected a multiple of {other}, {size}")


def mark(parameter: nn.Parameter, *marks: str) -> nn.Parameter:
    """Set the attributes by which training scripts know parameters that they treat apart."""
    for name in marks:
        setattr(parameter, name, True)
    return parameter
