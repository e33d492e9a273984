"""The scan of Mamba with complex rates, by the real one.

With ``A = a + i w`` and ``S_i`` the sum of the time steps, ``h_i = exp(i w S_i) k_i`` where
``k_i = exp(dt_i a) k_{i-1} + dt_i exp(-i w S_i) B_i x_i``: the real scan of its real and imaginary
parts, with a B and a C of every channel.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .._core.conversions import work_dtype
from ..operators import selective_scan


def scan_complex(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, softplus: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (batch, dim, seqlen), and the last state (batch, dim, dstate)."""
    work = work_dtype(u.dtype)
    dt = delta.to(work) if delta_bias is None else delta.to(work) + delta_bias.to(work)[:, None]
    dt = F.softplus(dt) if softplus else dt
    B, C = (_by_channel(x, u.shape, A) for x in (B, C))  # (batch, dim, seqlen, dstate)
    # Angles grow with the sequence: in float64 they keep their digits.
    angle = dt.double().cumsum(-1)[..., None] * A.imag.double()[:, None]
    turn = torch.polar(torch.ones_like(angle), angle).to(A.dtype)
    written, read = turn.conj() * B, 2 * turn * C
    y, state = selective_scan(
        u[..., None], dt[..., None], torch.cat([A.real, A.real], -1)[:, None],
        torch.cat([written.real, written.imag], -1), torch.cat([read.real, -read.imag], -1),
        D=None if D is None else D[:, None], z=None if z is None else z[..., None],
        return_state=True,
    )  # fmt: skip
    real, imaginary = state.s[:, :, 0].chunk(2, -1)
    last = torch.complex(real, imaginary).to(A.dtype)
    return y[..., 0], last * turn[:, :, -1] if u.shape[-1] else last


def _by_channel(x: Tensor, shape: torch.Size, A: Tensor) -> Tensor:
    """B or C of any shape as (batch or 1, dim or 1, seqlen or 1, dstate), complex."""
    dim, n = shape[1:]
    if x.ndim == 2:
        return x[None, :, None]
    x = x.unflatten(-1, (n, 2)).to(A.real.dtype)
    x = torch.view_as_complex(x.contiguous()).mT
    if x.ndim == 3:
        return x[:, None]
    return x.repeat_interleave(dim // x.shape[1], 1)
