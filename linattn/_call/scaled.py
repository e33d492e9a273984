"""Recurrences whose memory is held under a log scale, `mlstm` and `wkv`, as bridges see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._blocks.effects import ScaledElement
from .._core import checks
from .._states.state_arrays import State
from ..operators.mlstm import LAYOUT as MLSTM_LAYOUT
from ..operators.mlstm import mlstm, mlstm_backward, mlstm_step
from ..operators.wkv import LAYOUT as WKV_LAYOUT
from ..operators.wkv import wkv, wkv_backward, wkv_step
from .recurrence import RECURRENCES, Recurrence

if TYPE_CHECKING:
    from .._core.layout import Call, Layout
    from .._types import DType, Shape

    Cores = tuple[Shape | None, ...]


class Scaled:
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

    cross = mapped = one_array = False
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
        self.extras, self._read = self.operands[layout.leading :], layout.read
        self.fields, self.first, self.decay = fields, first, decay
        self._functions = functions
        self.normalizer = len({*fields.values()}) > 1  #: whether z is optional

    def forward(self, operands: tuple[Any, ...], **options: Any) -> Any:
        return self._functions["forward"](*operands, **options)

    def backward(self, operands: tuple[Any, ...], grad_out: Any, **options: Any) -> Any:
        return self._functions["backward"](*operands, grad_out, **options)

    def step(self, operands: tuple[Any, ...], state: State, **options: Any) -> Any:
        return self._functions["step"](*operands, state, **options)

    def cores(self, sizes: Mapping[str, int], normalize: bool, *packed: int) -> Cores:
        """The shapes of s, z and log_scale, without leading axes; None for z if it is left out."""
        return tuple(
            None if field == "z" and self.normalizer and not normalize
            else (*packed, *(sizes[x] for x in letters))
            for field, letters in self.fields.items()
        )  # fmt: skip

    def state(self, full: Callable[[Shape, float], Any], lead: Shape, cores: Cores) -> State:
        """The state before all tokens, of arrays ``full(shape, value)``."""
        values = {"log_scale": self.first}
        return State(*(
            None if core is None else full((*lead, *core), values.get(field, 0.0))
            for field, core in zip(self.fields, cores, strict=True)
        ))  # fmt: skip

    def checked(
        self, function: str, operands: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[Call, Cores]:
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

    cotangent = staticmethod(checks.cotangent)

    def effect(
        self,
        operands: tuple[Any, ...],
        end_of: Callable[..., State],
        dtype: DType,
        *,
        xp: Any = np,
        key_lengths: Any = None,
        normalize: bool = True,
    ) -> ScaledElement:
        """The element of a block; ``end_of(operands, state)`` is the state after it."""
        pairs = [*zip(self.operands, operands, strict=True)]
        sizes = {
            letter: size
            for row, x in pairs
            for letter, size in zip(row.dims, x.shape[x.ndim - len(row.dims) :], strict=True)
        }
        nothing = self.state(
            lambda shape, value: xp.full(shape, value, dtype), (), self.cores(sizes, normalize)
        )
        # Without any memory; so that the log scale is that of the block's own keys.
        nothing = nothing._replace(log_scale=xp.full_like(nothing.log_scale, -np.inf))
        end = end_of(operands, nothing)
        named = {row.name: x for row, x in pairs}
        there = None
        if key_lengths is not None:
            there = xp.arange(sizes["n"]) < xp.asarray(key_lengths)[..., None]
        a = self.decay(named, there, xp).astype(dtype)
        return ScaledElement(xp.broadcast_to(a, end.log_scale.shape), *end, self.first)


def _decay_of_mlstm(named: Mapping[str, Any], there: Any, xp: Any) -> Any:
    """The sum of log sigma(f)."""
    f = named["f"] if there is None else xp.where(there, named["f"], np.inf)
    return -xp.logaddexp(xp.zeros_like(f), -f).sum(-1)


def _decay_of_wkv(named: Mapping[str, Any], there: Any, xp: Any) -> Any:
    """-w for each token."""
    count = named["k"].shape[-2] if there is None else there.sum(-1)[..., None]
    return -named["w"] * count


SCALED: dict[str, Scaled] = {
    r.name: r
    for r in (
        Scaled(
            MLSTM_LAYOUT, mlstm, mlstm_backward, mlstm_step,
            fields={"s": "dm", "z": "d", "log_scale": ""}, first=0.0, decay=_decay_of_mlstm,
        ),
        Scaled(
            WKV_LAYOUT, wkv, wkv_backward, wkv_step,
            fields=dict.fromkeys(("s", "z", "log_scale"), "m"), first=-np.inf,
            decay=_decay_of_wkv,
        ),
    )
}  # fmt: skip


def every() -> list[Recurrence | Scaled]:
    """All recurrences: those of the registry, and these."""
    return [*RECURRENCES.values(), *SCALED.values()]
