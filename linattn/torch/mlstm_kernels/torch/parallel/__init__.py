"""Kernels over all pairs of tokens, which take time in proportion to their number here."""

from collections.abc import Callable
from typing import Any

from .native import mlstm_parallel__native_autograd, mlstm_parallel__native_custbw
from .native_siging import (
    mlstm_siging_parallel__native_autograd,
    mlstm_siging_parallel__native_custbw,
)
from .native_stablef import (
    mlstm_parallel__native_stablef_autograd,
    mlstm_parallel__native_stablef_custbw,
)
from .triton_limit_headdim import mlstm_parallel__limit_headdim

__all__ = [
    "mlstm_parallel__limit_headdim", "mlstm_parallel__native_autograd",
    "mlstm_parallel__native_custbw", "mlstm_parallel__native_stablef_autograd",
    "mlstm_parallel__native_stablef_custbw", "mlstm_siging_parallel__native_autograd",
    "mlstm_siging_parallel__native_custbw", "registry",
]  # fmt: skip

registry: dict[str, Callable[..., Any]] = {
    "native_autograd": mlstm_parallel__native_autograd,
    "native_custbw": mlstm_parallel__native_custbw,
    "native_stablef_autograd": mlstm_parallel__native_stablef_autograd,
    "native_stablef_custbw": mlstm_parallel__native_stablef_custbw,
    "native_siging_autograd": mlstm_siging_parallel__native_autograd,
    "native_siging_custbw": mlstm_siging_parallel__native_custbw,
    "triton_limit_headdim": mlstm_parallel__limit_headdim,
}
