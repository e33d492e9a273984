"""Recurrences with a feature map that is an object: it is applied before an unmapped kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks, gradient_sums
from .._core.dtypes import is_weak, result_dtype, work_dtype
from .._core.gufuncs import quiet
from .._core.settings import one_isa
from ..feature_maps import FeatureMap, PositiveRandomFeatures
from ..feature_maps._feature_map import Fused
from ..feature_maps._names import map_of
from . import rescaled

if TYPE_CHECKING:
    from .._types import Array
    from .recurrence import Recurrence


def outside(feature_map: Any) -> bool:
    """Whether the map is not the name of a fused one."""
    return not isinstance(feature_map, str) or feature_map == "dpfp"


def refuse_rescaling(function: str, feature_map: Any, normalize: Any) -> None:
    """Raise if features are rescaled as the sequence goes on."""
    if normalize and isinstance(feature_map, PositiveRandomFeatures):
        raise ValueError(
            f"{function}: feature_map is {feature_map!r}; expected another map, or "
            "normalize=False, where the sequence is in blocks: its states carry a scale of their "
            "own"
        )


@quiet
@one_isa()
def call(
    recurrence: Recurrence, method: str, operands: tuple[Any, ...], feature_map: Any, **options: Any
) -> Any:
    """``recurrence.method(operands, feature_map=feature_map, **options)``.

    phi(q) and phi(k) are separate arrays here, of (n + s) f numbers per head.
    """
    name = recurrence.names[method]
    phi = map_of(name, feature_map)
    if isinstance(phi, Fused):
        return getattr(recurrence, method)(operands, feature_map=phi.name, **options)
    q, k, *others = _operands(recurrence, method, operands)
    if method == "backward":
        others.append(checks.operand(name, "grad_out", options.pop("grad_out"), 0))
    wide = (*(row.state_dtype for row in recurrence.operands[2:]), False)
    typed = (x for x, kept in zip(others, wide, strict=False) if not (kept or _is_weak(x)))
    dtype = result_dtype(q, k, *typed)
    work = work_dtype(dtype)
    q, k = np.asarray(q, work), np.asarray(k, work)
    run: Callable[..., Any] = _plain
    normalize = checks.flag(name, "normalize", options["normalize"])
    if isinstance(phi, PositiveRandomFeatures) and normalize:
        if options.get("block") is not None:
            refuse_rescaling(name, phi, True)
        run = rescaled.call
    if dtype != work:
        others = [x if _is_weak(x) else np.asarray(x, work) for x in others]
        out = options.pop("out", None)
    if method == "backward":
        options["grad_out"] = others.pop()
    result = run(recurrence, method, phi, (q, k, *others), **options)
    if dtype == work:
        return result
    given = (kept for x, kept in zip(others, wide, strict=False) if x is not None)
    return _narrowed(name, result, dtype, out, (False, False, *given))


def _operands(recurrence: Recurrence, method: str, operands: tuple[Any, ...]) -> list[Any]:
    """The operands, checked before they are converted."""
    name, count = recurrence.names[method], recurrence.layout.leading
    leading = recurrence.read(name, operands[:count], tokens=method != "step").arrays
    others = zip(recurrence.operands[count:], operands[count:], strict=True)
    return [
        *leading,
        *(x if _is_weak(x) else checks.operand(name, row.name, x, 0) for row, x in others),
    ]


def _is_weak(x: Any) -> bool:
    """Whether an operand does not affect a call's dtype: a Python number, or None."""
    return x is None or is_weak(x)


def _plain(
    recurrence: Recurrence,
    method: str,
    phi: FeatureMap,
    operands: tuple[Any, ...],
    **options: Any,
) -> Any:
    q, k, *others = operands
    inner = getattr(recurrence, method)
    if method == "step":  # maps with weights per head need the axis of tokens
        a, b = (phi(x[..., None, :])[..., 0, :] for x in (q, k))
    else:
        a, b = phi(q), phi(k)
    result = inner((a, b, *others), feature_map="identity", **options)
    if method != "backward":
        return result
    da, db, *rest = result
    dk = phi.input_gradient(k, db)
    gradient_sums.clear_padding(dk, options["key_lengths"])
    return phi.input_gradient(q, da), dk, *rest


def _narrowed(
    name: str, result: Any, dtype: np.dtype[Any], out: Array | None, wide: tuple[bool, ...]
) -> Any:
    """The float32 arrays of a result rounded to 16 bits, the first of them to ``out``.

    States are not rounded, nor are gradients of operands that are ``wide``.
    """
    if not isinstance(result, tuple):
        return _narrowed(name, (result,), dtype, out, wide)[0]
    if out is not None:
        checks.out(name, out, result[0].shape, np.empty(0, dtype))
        out[...] = result[0]
        return (out, *result[1:])
    kept = (*wide[: len(result)], *(False for _ in result[len(wide) :]))
    return tuple(
        x if isinstance(x, tuple) or stays else x.astype(dtype)
        for x, stays in zip(result, kept, strict=True)
    )
