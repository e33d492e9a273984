"""Losses: cross entropy and the Kullback-Leibler divergence of logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ._activations import wide


def cross_entropy_loss(
    logits: Tensor, target: Tensor, label_smoothing: float = 0.0, logit_scale: float = 1.0,
    lse_square_scale: float = 0.0, logit_softcapping: float | None = None,
    ignore_index: int = -100, inplace_backward: bool = False, process_group: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of each row [N], in float32, and the part lse_square_scale lse^2 of it."""
    _refuse_group("cross_entropy_loss", process_group)
    scaled = _capped(wide(logits), logit_scale, logit_softcapping)
    loss = F.cross_entropy(
        scaled, target, ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction="none",
    )  # fmt: skip
    z_loss = torch.zeros_like(loss)
    if lse_square_scale:
        z_loss = lse_square_scale * scaled.logsumexp(-1).square() * (target != ignore_index)
        loss = loss + z_loss
    return loss.float(), z_loss.detach().float()


def fused_cross_entropy(self: Any, input: Tensor, target: Tensor) -> Any:
    """``FusedCrossEntropyLoss.forward``, which asserts that tensors are on a GPU."""
    loss, z_loss = cross_entropy_loss(
        input, target, self.label_smoothing, self.logit_scale, self.lse_square_scale,
        self.logit_softcapping, self.ignore_index, self.inplace_backward, self.process_group,
    )  # fmt: skip
    if self.reduction != "none":
        total = (target != self.ignore_index).sum() if self.reduction == "mean" else 1
        loss, z_loss = loss.sum() / total, z_loss.sum() / total
    return (loss, z_loss) if self.return_z_loss else loss


def fused_linear_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None = None,
    ignore_index: int = -100, label_smoothing: float = 0.0, logit_scale: float = 1.0,
    logit_softcapping: float | None = None, num_chunks: int = 8, reduction: str = "mean",
    use_l2warp: bool = False, l2_penalty_factor: float = 1e-4,
    accumulate_grad_in_fp32: bool = True, process_group: Any = None,
) -> Tensor:  # fmt: skip
    """The cross entropy of x W^T + b, in chunks of rows, each of whose logits backward recomputes.

    With ``use_l2warp`` the gradient of the largest logit of each row gains that logit times
    ``l2_penalty_factor`` / N.
    """
    _refuse_group("fused_linear_cross_entropy_loss", process_group)
    total = (target != ignore_index).sum().clamp(min=1) if reduction == "mean" else 1

    def part(rows: Tensor, labels: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        logits = F.linear(rows, w, b)
        loss, _ = cross_entropy_loss(
            logits, labels, label_smoothing, logit_scale, 0.0, logit_softcapping, ignore_index
        )
        loss = loss.sum() / total
        if use_l2warp:
            penalty = 0.5 * l2_penalty_factor / len(target) * logits.amax(-1).square().sum()
            loss = loss + (penalty - penalty.detach())  # a gradient without a value
        return loss

    return _in_chunks(part, num_chunks, (x, target), (weight, bias))


def fused_kl_div(
    x: Tensor, target_x: Tensor, weight: Tensor, target_weight: Tensor, reduction: str,
    accumulate_grad_in_fp32: bool, grad_enabled: bool,
) -> Tensor:  # fmt: skip
    """The divergence of softmax(x W^T) from that of the target, a mean over rows."""

    def part(rows: Tensor, targets: Tensor, w: Tensor, target_w: Tensor) -> Tensor:
        ours, theirs = (
            wide(F.linear(a, b)).log_softmax(-1) for a, b in ((rows, w), (targets, target_w))
        )
        return F.kl_div(ours, theirs, reduction="sum", log_target=True) / len(x)

    return _in_chunks(part, 8, (x, target_x), (weight, target_weight)).float()


def _in_chunks(
    part: Callable[..., Tensor], count: int, rows: tuple[Tensor, ...], others: tuple[Any, ...]
) -> Tensor:
    """The sum of ``part`` over chunks of rows."""
    chunks = zip(*(x.split(max(1, -(-len(x) // count))) for x in rows), strict=True)
    parts = [checkpoint(part, *chunk, *others, use_reentrant=False) for chunk in chunks]
    return torch.stack(parts).sum()


def _capped(logits: Tensor, scale: float, cap: float | None) -> Tensor:
    logits = logits if scale == 1 else logits * scale
    return logits if cap is None else cap * (logits / cap).tanh()


def _refuse_group(name: str, process_group: Any) -> None:
    if process_group is not None:
        raise NotImplementedError(
            f"{name}: process_group is {process_group!r}; expected None for tensors on a CPU, as "
            "linattn does not split vocabularies"
        )
