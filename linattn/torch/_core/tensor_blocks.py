"""``block`` of tensors: a call of twice as many tokens, as in `_call.whole_blocks`.

It is made of functions of PyTorch, so that gradients and graphs pass through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._call.whole_blocks import Places, checked, places, silent_key
from ..._core.checks import shape_alone
from ..._states.state_arrays import checked_bounds, checked_lengths
from . import conversions, map_texts, option_checks, tensor_pools
from .private import constant

if TYPE_CHECKING:
    from .operator import TensorOperator


def forward(
    operator: TensorOperator, operands: Sequence[Any], block: Any, *, key_lengths: Any = None,
    cu_seqlens: Any = None, state_at: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """The output, and the states that are asked for."""
    name, rows = operator.name, operator.operands
    block = checked(rows, name, operands, block)
    if block == 1:
        return operator.forward(
            operands, key_lengths=key_lengths, cu_seqlens=cu_seqlens, state_at=state_at, **options
        )
    args = conversions.promoted(name, rows, operands)
    n, batch = _sizes(operator, args)
    at = _placed(name, args[0], n, min(block, max(n, 1)), cu_seqlens)
    if cu_seqlens is not None:
        options["cu_seqlens"] = 2 * option_checks.integers(name, "cu_seqlens", cu_seqlens, args[0])
    if key_lengths is not None:
        key_lengths = option_checks.integers(name, "key_lengths", key_lengths, args[0])
        if (found := conversions.values(key_lengths)) is not None:
            checked_lengths(name, found, n, batch)
        after = torch.cat((at.write.new_zeros(1), at.write + 1))
        options["key_lengths"] = after[key_lengths.long()]
    if state_at is not None:
        ends = tensor_pools.positions_of(name, state_at, n)
        options["state_at"] = [p + (p - 1) // block * block if p else 0 for p in ends]
    eps = options.get("eps")
    if isinstance(eps, (int, float)) and eps >= 0:
        options["eps"] = max(eps, _tiny(args[0]))
    args, fill, narrow = _features(name, args, options, key_lengths)
    result = operator.forward(_spread(operator, args, at, fill), **options)
    o, *state = result if isinstance(result, tuple) else (result,)
    o = o.index_select(-2, at.read)
    o = o if narrow is None else o.to(narrow)
    return (o, *state) if state else o


def _sizes(operator: TensorOperator, args: Sequence[Any]) -> tuple[int, Any]:
    """The number of tokens, and the leading axes."""
    if not torch.compiler.is_compiling():
        operator.description.layout.read(operator.name, [shape_alone(x) for x in args])
    named = {row.name: x for row, x in zip(operator.operands, args, strict=True) if x is not None}
    batch, sizes = operator.shape(named, step=False)
    return sizes["n"], tuple(batch)


def _placed(name: str, like: Tensor, n: int, block: int, cu_seqlens: Any) -> Places:
    tokens = torch.arange(n, device=like.device)
    if cu_seqlens is None:
        return places(tokens, 0, n, block)
    bounds = option_checks.integers(name, "cu_seqlens", cu_seqlens, like).long()
    if (found := conversions.values(bounds)) is not None:
        checked_bounds(name, found, n)
    after = torch.searchsorted(bounds, tokens, right=True)
    return places(tokens, bounds[after - 1], bounds[after], block)


def _tiny(like: Tensor) -> float:
    """The least denominator: one of 0 would make gradients of other tokens NaN."""
    return torch.finfo(conversions.work_dtype(like.dtype)).tiny


def _features(
    name: str, args: list[Any], options: dict[str, Any], key_lengths: Tensor | None
) -> tuple[list[Any], float, torch.dtype | None]:
    """The operands, of which kernels know the map; what fills keys; and the result's dtype if it
    is another than theirs."""
    phi = map_texts.resolve(name, options.pop("feature_map"))
    if isinstance(phi, str):
        options["feature_map"] = phi
        return args, _silent_key(phi), None
    if isinstance(phi, map_texts.TensorMap) and phi.rescaled and options.get("normalize"):
        raise ValueError(
            f"{name}: feature_map is {phi!r}; expected another map, or normalize=False, where the "
            "sequence is in blocks: its states carry a scale of their own"
        )
    options["feature_map"] = "identity"
    args, narrow = map_texts.applied(phi, args, key_lengths, token=False)
    return args, 0.0, narrow


@constant
def _silent_key(feature_map: str) -> float:
    return silent_key(feature_map)


def _spread(
    operator: TensorOperator, args: Sequence[Any], at: Places, fill: float
) -> tuple[Any, ...]:
    """The operands at their places."""
    named = {row.name: x for row, x in zip(operator.operands, args, strict=True) if x is not None}
    own = operator.own_axes({name: x.ndim for name, x in named.items()}, step=False)
    spread = []
    for i, (x, rank) in enumerate(zip(args, own, strict=True)):
        if x is not None:
            axis = x.ndim - rank
            shape = *x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :]
            where = at.write if i else at.read
            x = x.new_full(shape, fill if i == 1 else 0.0).index_copy(axis, where, x)
        spread.append(x)
    return tuple(spread)
