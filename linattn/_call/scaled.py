"""Recurrences whose memory is held under a log scale, `mlstm` and `wkv`, as bridges see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._states.state_arrays import State
from .interface import Interface
from .recurrence import RECURRENCES, Recurrence

if TYPE_CHECKING:
    from .._core.layout import Call, Layout

#: Every recurrence under a log scale, by name.
SCALED: dict[str, Scaled] = {}


class Scaled(Interface):
    """What a bridge reads of such a recurrence; like `recurrence.Recurrence`, with other states.

    Parameters
    ----------
    layout : Layout
    forward, backward, step : callable
        The public functions.
    fields : dict
        The letters of the axes of a state's arrays, by field.
    first : float
        log_scale of the state before all tokens.
    decay : callable
        ``decay(operands, there, xp)`` is the logarithm of what a sequence of tokens multiplies the
        memory by; ``there`` (..., n), or None, says which tokens have a key.
    """

    transition = "scaled"

    def __init__(
        self,
        layout: Layout,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        step: Callable[..., Any],
        *,
        fields: Mapping[str, str],
        first: float,
        decay: Callable[[Mapping[str, Any], Any, Any], Any],
    ) -> None:
        self.name, self.layout, self.operands = forward.__name__, layout, layout.operands
        functions = {"forward": forward, "backward": backward, "step": step}
        self.names = {method: f.__name__ for method, f in functions.items()}
        self.extras = self.operands[layout.leading :]
        self.fields, self.first, self.decay = fields, first, decay
        self._functions = functions
        self.normalizer = len({*fields.values()}) > 1  #: whether z is optional
        SCALED[self.name] = self

    def forward(self, operands: tuple[Any, ...], **options: Any) -> Any:
        return self._functions["forward"](*operands, **options)

    def backward(self, operands: tuple[Any, ...], grad_out: Any, **options: Any) -> Any:
        return self._functions["backward"](*operands, grad_out, **options)

    def step(self, operands: tuple[Any, ...], state: State, **options: Any) -> Any:
        return self._functions["step"](*operands, state, **options)

    def state_cores(self, function: str, call: Call, options: Mapping[str, Any]) -> State:
        return self.cores(call.fit.sizes, options.get("normalize", True))

    def checked(
        self, function: str, operands: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[Call, State]:
        """The operands and options of a call, checked, and the shapes of a state's arrays."""
        call = self.layout.read(function, operands)
        for name, x in options.items():
            if name == "normalize":
                checks.flag(function, name, x)
            elif name == "eps":
                checks.positive(function, name, x, *call.typed, zero=True)
            elif x is not None:
                checks.number(function, name, x, *call.typed)
        return call, self.cores(call.fit.sizes, options.get("normalize", True))


def every() -> list[Recurrence | Scaled]:
    """All recurrences: those of the registry, and these."""
    return [*RECURRENCES.values(), *SCALED.values()]
