"""The losses of fla's modules as layers, and as functions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ._losses import fused_cross_entropy, fused_kl_div, fused_linear_cross_entropy


class FusedCrossEntropyLoss(nn.Module):
    """The cross entropy of logits [N, V] and targets [N]; with ``return_z_loss``, and a part of it.

    That is lse_square_scale lse^2, the square of the logarithm of the sum of exponentials.
    """

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
        logit_scale: float = 1.0, lse_square_scale: float = 0.0,
        logit_softcapping: float | None = None, inplace_backward: bool = False,
        process_group: Any = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_reduction("FusedCrossEntropyLoss", reduction, ("mean", "none", "sum"))
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing, self.logit_scale = label_smoothing, logit_scale
        self.lse_square_scale, self.logit_softcapping = lse_square_scale, logit_softcapping
        self.inplace_backward, self.process_group = inplace_backward, process_group
        self.return_z_loss = return_z_loss

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return fused_cross_entropy(self, input, target)


class FusedLinearCrossEntropyLoss(nn.Module):
    """The cross entropy of x W^T + b, whose logits are computed in ``num_chunks`` pieces."""

    def __init__(
        self, ignore_index: int = -100, label_smoothing: float = 0.0, logit_scale: float = 1.0,
        logit_softcapping: float | None = None, num_chunks: int = 8, reduction: str = "mean",
        use_l2warp: bool = False, l2_penalty_factor: float = 1e-4,
        accumulate_grad_in_fp32: bool = True, process_group: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_reduction("FusedLinearCrossEntropyLoss", reduction, ("mean", "sum"))
        self.options = {
            "ignore_index": ignore_index, "label_smoothing": label_smoothing,
            "logit_scale": logit_scale, "logit_softcapping": logit_softcapping,
            "num_chunks": num_chunks, "reduction": reduction, "use_l2warp": use_l2warp,
            "l2_penalty_factor": l2_penalty_factor, "process_group": process_group,
        }  # fmt: skip

    def forward(
        self, x: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """x [..., D], target [...] and weight [V, D]."""
        rows, labels = x.flatten(0, -2), target.flatten()
        return fused_linear_cross_entropy(rows, labels, weight, bias, **self.options)


class FusedKLDivLoss(nn.Module):
    """The divergence of softmax(x W^T) from that of the target, a mean over rows."""

    def __init__(self, reduction: str = "batchmean", accumulate_grad_in_fp32: bool = True) -> None:
        super().__init__()
        _check_reduction("FusedKLDivLoss", reduction, ("batchmean",))
        self.reduction, self.accumulate_grad_in_fp32 = reduction, accumulate_grad_in_fp32

    def forward(self, x: Tensor, target_x: Tensor, weight: Tensor, target_weight: Tensor) -> Tensor:
        return fused_kl_div_loss(x, target_x, weight, target_weight)


def fused_kl_div_loss(
    x: Tensor, target_x: Tensor, weight: Tensor, target_weight: Tensor,
    reduction: str = "batchmean", accumulate_grad_in_fp32: bool = True,
) -> Tensor:  # fmt: skip
    """`FusedKLDivLoss` as a function."""
    return fused_kl_div(x, target_x, weight, target_weight, reduction, True, True)


def _check_reduction(name: str, reduction: str, known: tuple[str, ...]) -> None:
    if reduction not in known:
        raise ValueError(f"{name}: reduction is {reduction!r}; expected one of {known}")
