"""Kernels for sequences of any number of tokens, which those of linattn are by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "wrap_chunkwise__arbitrary_sequence_length",
    "wrap_chunkwise__arbitrary_sequence_length_with_padding", "wrap_chunkwise__pad_zeros",
]  # fmt: skip


def wrap_chunkwise__arbitrary_sequence_length(
    mlstm_chunkwise_kernel: Callable[..., Any],
    mlstm_sequence_kernel: Callable[..., Any],
    mlstm_step_kernel: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool = True,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    dtype_state: torch.dtype = torch.float32,
    enable_logging: bool = False,
) -> Any:
    """A kernel's result for a sequence: one call of it, or a step for one token.

    Parameters
    ----------
    mlstm_chunkwise_kernel, mlstm_sequence_kernel, mlstm_step_kernel : callable
        Kernels of this package; the second has no effect.
    q, k, v, f, i, c_initial, n_initial, m_initial : Tensor
        As kernels take them; states are zeros by default.
    return_last_states : bool
        Also return c, n and m after the last token.
    eps : float
        As kernels take it.
    autocast_kernel_dtype, chunk_size, dtype_state : torch.dtype, int, torch.dtype
        Have no effect.
    enable_logging : bool
        Has no effect.

    Returns
    -------
    h : Tensor, (B, NH, S, DHV)
    states : tuple of Tensor
        c, n and m where ``return_last_states``.

    Raises
    ------
    TypeError, ValueError
        As kernels do.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_step_kernel
    >>> from linattn.torch.mlstm_kernels.torch.kernel_wrappers import (
    ...     wrap_chunkwise__arbitrary_sequence_length,
    ... )
    >>> kernel, step = get_mlstm_kernel("chunkwise--native_custbw"), get_mlstm_step_kernel("native")
    >>> x, gate = torch.ones(1, 1, 5, 2), torch.zeros(1, 1, 5)
    >>> operands = x, x, x, gate, gate
    >>> h, _ = wrap_chunkwise__arbitrary_sequence_length(kernel, None, step, *operands)
    >>> h.shape
    torch.Size([1, 1, 5, 2])
    """
    states = c_initial, n_initial, m_initial
    if q.shape[2] == 1:
        state = dict(zip("cnm", states, strict=True))
        q, k, v = (x.squeeze(2) for x in (q, k, v))
        h, states = mlstm_step_kernel(q=q, k=k, v=v, i=i, f=f, **state, eps=eps)
        h = h.unsqueeze(2)
    else:
        h, states = mlstm_chunkwise_kernel(q, k, v, i, f, *states, return_last_states=True, eps=eps)
    return (h, states) if return_last_states else h


wrap_chunkwise__arbitrary_sequence_length_with_padding = wrap_chunkwise__arbitrary_sequence_length


def wrap_chunkwise__pad_zeros(
    mlstm_chunkwise_kernel: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor:
    """A kernel's output for a sequence: one call of it, which needs no padding.

    Parameters
    ----------
    mlstm_chunkwise_kernel : callable
        A kernel of this package.
    q, k, v, f, i, c_initial, n_initial, m_initial : Tensor
        As kernels take them.
    return_last_states : bool
        False.
    eps : float
        As kernels take it.
    autocast_kernel_dtype, chunk_size
        Have no effect.
    **kwargs
        Further arguments of the kernel.

    Returns
    -------
    h : Tensor, (B, NH, S, DHV)

    Raises
    ------
    ValueError
        If states are asked for.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mlstm_kernels.torch import get_mlstm_kernel
    >>> from linattn.torch.mlstm_kernels.torch.kernel_wrappers import wrap_chunkwise__pad_zeros
    >>> x, gate = torch.ones(1, 1, 5, 2), torch.zeros(1, 1, 5)
    >>> kernel = get_mlstm_kernel("chunkwise--native_autograd")
    >>> wrap_chunkwise__pad_zeros(kernel, x, x, x, gate, gate).shape
    torch.Size([1, 1, 5, 2])
    """
    if return_last_states:
        raise ValueError(
            f"wrap_chunkwise__pad_zeros: return_last_states is {return_last_states!r}; expected "
            "False"
        )
    h: Tensor = mlstm_chunkwise_kernel(
        q=q, k=k, v=v, i=i, f=f, c_initial=c_initial, n_initial=n_initial, m_initial=m_initial,
        eps=eps, **kwargs,
    )  # fmt: skip
    return h
