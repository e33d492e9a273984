"""Kernels of a token, and those that take tokens one after another."""

from collections.abc import Callable
from typing import Any

from .native_sequence import (
    mlstm_recurrent_sequence__native_fw,
    mlstm_recurrent_sequence__triton_step_fused_fw,
)
from .native_step import mlstm_recurrent_step__native
from .triton_step import mlstm_recurrent_step__triton

__all__ = [
    "mlstm_recurrent_sequence__native_fw", "mlstm_recurrent_sequence__triton_step_fused_fw",
    "mlstm_recurrent_step__native", "mlstm_recurrent_step__triton", "registry_sequence",
    "registry_step",
]  # fmt: skip

registry_step: dict[str, Callable[..., Any]] = {
    "native": mlstm_recurrent_step__native,
    "triton": mlstm_recurrent_step__triton,
}
registry_sequence: dict[str, Callable[..., Any]] = {
    "native_sequence__native": mlstm_recurrent_sequence__native_fw,
    "native_sequence__triton": mlstm_recurrent_sequence__triton_step_fused_fw,
}
