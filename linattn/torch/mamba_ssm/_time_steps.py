"""The time steps of the scans of Mamba and Mamba-2."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def time_steps(dt: Tensor, bias: Tensor | None, softplus: bool, work: torch.dtype) -> Tensor:
    """``dt + bias``, or softplus of it, in the dtype that scans compute in."""
    dt = dt.to(work) if bias is None else dt.to(work) + bias.to(work)
    return F.softplus(dt) if softplus else dt
