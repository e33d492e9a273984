"""The kernels by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .chunkwise import registry as _chunkwise
from .parallel import registry as _parallel
from .recurrent import registry_sequence as _sequence
from .recurrent import registry_step as _step

__all__ = [
    "get_available_mlstm_kernels", "get_available_mlstm_sequence_kernels",
    "get_available_mlstm_step_kernels", "get_mlstm_kernel", "get_mlstm_sequence_kernel",
    "get_mlstm_step_kernel",
]  # fmt: skip

_KERNELS: dict[str, Callable[..., Any]] = {
    f"{module}--{name}": kernel
    for module, registry in (("chunkwise", _chunkwise), ("parallel", _parallel))
    for name, kernel in registry.items()
}


def get_available_mlstm_kernels() -> list[str]:
    """The names that `get_mlstm_kernel` takes."""
    return [*_KERNELS]


def get_mlstm_kernel(name: str) -> Callable[..., Any]:
    """A kernel over all tokens, such as "chunkwise--triton_xl_chunk"."""
    return _found("get_mlstm_kernel", _KERNELS, name)


def get_available_mlstm_step_kernels() -> list[str]:
    """The names that `get_mlstm_step_kernel` takes."""
    return [*_step]


def get_mlstm_step_kernel(name: str) -> Callable[..., Any]:
    """A kernel of one token, such as "triton"."""
    return _found("get_mlstm_step_kernel", _step, name)


def get_available_mlstm_sequence_kernels() -> list[str]:
    """The names that `get_mlstm_sequence_kernel` takes."""
    return [*_sequence]


def get_mlstm_sequence_kernel(name: str) -> Callable[..., Any]:
    """A kernel over all tokens, of any number, such as "native_sequence__triton"."""
    return _found("get_mlstm_sequence_kernel", _sequence, name)


def _found(
    function: str, kernels: Mapping[str, Callable[..., Any]], name: str
) -> Callable[..., Any]:
    if name not in kernels:
        raise ValueError(f"{function}: name is {name!r}; expected one of {[*kernels]}")
    return kernels[name]
