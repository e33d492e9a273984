"""The module that layers of mLSTM call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import get_mlstm_kernel, get_mlstm_sequence_kernel, get_mlstm_step_kernel
from .kernel_wrappers import wrap_chunkwise__arbitrary_sequence_length, wrap_chunkwise__pad_zeros

__all__ = ["mLSTMBackend", "mLSTMBackendConfig"]

ChunkwiseKernelType = Literal[
    "chunkwise--native_autograd", "chunkwise--native_custbw", "chunkwise--triton_limit_chunk",
    "chunkwise--triton_xl_chunk", "chunkwise--triton_xl_chunk_siging",
    "parallel--native_autograd", "parallel--native_custbw", "parallel--native_stablef_autograd",
    "parallel--native_stablef_custbw", "parallel--triton_limit_headdim",
    "parallel--native_siging_autograd", "parallel--native_siging_custbw",
]  # fmt: skip
SequenceKernelType = Literal["native_sequence__native", "native_sequence__triton"]
StepKernelType = Literal["native", "triton"]
DtypeType = Literal["float32", "bfloat16", "float16"]
BackendModeType = Literal["train", "train_with_padding", "inference"]


@dataclass
class mLSTMBackendConfig:
    """What `mLSTMBackend` computes.

    Parameters
    ----------
    chunkwise_kernel : str
        Exponential or sigmoid (siging) input gates, with or without states (parallel).
    sequence_kernel, step_kernel : str
        Have no effect.
    mode : {'train', 'train_with_padding', 'inference'}
        In inference the state is always returned.
    chunk_size : int
        Has no effect.
    return_last_states : bool
        Whether training returns the state.
    autocast_kernel_dtype : str
        Has no effect.
    eps : float
        Added to the denominator.
    inference_state_dtype : str
        Of the states that a step returns in inference.
    normalize_siging : bool
        Whether to divide, for sigmoid input gates in training.
    """

    chunkwise_kernel: ChunkwiseKernelType = "chunkwise--native_autograd"
    sequence_kernel: SequenceKernelType = "native_sequence__native"
    step_kernel: StepKernelType = "native"
    mode: BackendModeType = "train"
    chunk_size: int = 64
    return_last_states: bool = True
    autocast_kernel_dtype: DtypeType = "bfloat16"
    eps: float = 1e-6
    inference_state_dtype: DtypeType = "float32"
    normalize_siging: bool = True

    def __post_init__(self) -> None:
        without = "parallel" in self.chunkwise_kernel and f"the kernel {self.chunkwise_kernel!r}"
        without = without or (self.mode == "train_with_padding" and f"the mode {self.mode!r}")
        if self.return_last_states and without:
            raise ValueError(
                f"mLSTMBackendConfig: return_last_states is {self.return_last_states!r}; expected "
                f"False with {without}"
            )


class mLSTMBackend(nn.Module):
    """mLSTM as a module without parameters.

    Parameters
    ----------
    config : mLSTMBackendConfig
        What it computes.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mlstm_kernels.torch.backend_module import (
    ...     mLSTMBackend,
    ...     mLSTMBackendConfig,
    ... )
    >>> x, gate = torch.ones(1, 2, 10, 4), torch.zeros(1, 2, 10)
    >>> backend = mLSTMBackend(mLSTMBackendConfig(mode="inference"))
    >>> h, (c, n, m) = backend(x, x, x, gate, gate)
    >>> c.shape, n.shape, m.shape
    (torch.Size([1, 2, 4, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 1]))
    """

    config_class = mLSTMBackendConfig

    def __init__(self, config: mLSTMBackendConfig) -> None:
        super().__init__()
        self.config = config
        self.chunkwise_kernel_fn = get_mlstm_kernel(config.chunkwise_kernel)
        self.sequence_kernel_fn = get_mlstm_sequence_kernel(config.sequence_kernel)
        self.step_kernel_fn = get_mlstm_step_kernel(config.step_kernel)
        dtype = getattr(torch, config.inference_state_dtype)
        self._inference_fn = partial(
            wrap_chunkwise__arbitrary_sequence_length, self.chunkwise_kernel_fn,
            self.sequence_kernel_fn, partial(self.step_kernel_fn, dtype_state=dtype),
            eps=config.eps, dtype_state=dtype,
        )  # fmt: skip
        self._train_fn = partial(self.chunkwise_kernel_fn, eps=config.eps)
        if config.mode == "train_with_padding":
            self._train_fn = partial(
                wrap_chunkwise__pad_zeros, self.chunkwise_kernel_fn, eps=config.eps
            )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool | None = None,
        mode: BackendModeType | None = None,
    ) -> Any:
        """The output, and the state where it is asked for or in inference.

        Parameters
        ----------
        q, k : Tensor, (B, NH, S, DHQK)
            Queries and keys.
        v : Tensor, (B, NH, S, DHV)
            Values.
        i, f : Tensor, (B, NH, S)
            Input and forget gates before their functions.
        c_initial, n_initial, m_initial : Tensor, optional
            The state before the first token, (B, NH, DHQK, DHV), (B, NH, DHQK) and (B, NH, 1);
            zeros by default.
        return_last_states, mode
            Those of the configuration by default.

        Returns
        -------
        h : Tensor, (B, NH, S, DHV)
        states : tuple of Tensor
            c, n and m; c and n for sigmoid input gates.

        Raises
        ------
        ValueError
            If the mode is unknown, or the kernel has no states and they are asked for.
        """
        mode = self.config.mode if mode is None else mode
        states: dict[str, Any] = {
            "c_initial": c_initial, "n_initial": n_initial, "m_initial": m_initial
        }  # fmt: skip
        if mode == "inference":
            return self._inference_fn(q=q, k=k, v=v, i=i, f=f, **states)
        if mode not in ("train", "train_with_padding"):
            raise ValueError(
                f"mLSTMBackend: mode is {mode!r}; expected 'train', 'train_with_padding' or "
                "'inference'"
            )
        if return_last_states is None:
            return_last_states = self.config.return_last_states
        more = {}
        if "siging" in self.config.chunkwise_kernel:
            more["normalize"] = self.config.normalize_siging
        return self._train_fn(
            q=q, k=k, v=v, i=i, f=f, **states, return_last_states=return_last_states, **more
        )

    def extra_repr(self) -> str:
        return f"{self.config}"
