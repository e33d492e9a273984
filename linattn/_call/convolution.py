"""`linattn.causal_conv1d` with the methods of a recurrence: its state is one array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import conv
from .._core import checks

if TYPE_CHECKING:
    from .._core.layout import Call
    from .._types import Array


class Convolution:
    """The operands are x, weight and bias, None if it is left out."""

    layout, operands = conv.LAYOUT, conv.LAYOUT.operands
    mapped = normalizer = False
    one_array = True
    names = {  # noqa: RUF012
        "forward": "causal_conv1d",
        "backward": "causal_conv1d_backward",
        "step": "causal_conv1d_step",
    }
    cotangent = staticmethod(checks.cotangent)

    def _read(self, function: str, operands: tuple[Any, ...], *, tokens: bool = True) -> Call:
        """The operands, checked; a state has the inputs of one token less than a filter."""
        call = self.layout.read(function, operands, tokens=tokens)
        c, w = call.core
        return call._replace(fit=call.fit._replace(core=(c, max(w - 1, 0))))

    def forward(self, operands: tuple[Any, ...], **options: Any) -> Any:
        return conv.causal_conv1d(*operands, **options)

    def backward(
        self, operands: tuple[Any, ...], grad_out: Any, **options: Any
    ) -> tuple[Array, ...]:
        x, weight, bias = operands
        return conv.causal_conv1d_backward(x, weight, grad_out, bias, **options)

    def step(self, operands: tuple[Any, ...], state: Any, **options: Any) -> tuple[Any, Any]:
        x, weight, bias = operands
        return conv.causal_conv1d_step(x, weight, state, bias, **options)


CONVOLUTION = Convolution()
