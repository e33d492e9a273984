"""Checks of layers' arguments; messages name the layer, the argument and what was expected."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import FunctionType
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor

from ..._core.checks import integer as integer
from ..._core.checks import positive as positive
from .._core.conversions import values as values
from .._core.option_checks import integers

F = TypeVar("F", bound=Callable[..., Any])


class Factory(TypedDict, total=False):
    """The keywords of every constructor that say where its parameters are, and of which dtype."""

    device: Any
    dtype: torch.dtype | None


_FACTORY = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=x.__forward_arg__)
    for name, x in inspect.get_annotations(Factory).items()
]
_LENGTHS = "key_lengths, such as mask.sum(-1), or key_padding_mask, True for padding"
#: What other libraries call an argument, and what to pass in its place.
_HINTS = {
    "mask": _LENGTHS, "attention_mask": _LENGTHS, "attn_mask": _LENGTHS,
    "src_key_padding_mask": "key_padding_mask", "padding_mask": "key_padding_mask",
    "max_new_tokens": "steps", "max_length": "steps", "eos_token_id": "stop_token",
}  # fmt: skip


def probability(layer: str, name: str, x: Any) -> float:
    """x as a number from 0 to 1."""
    if positive(layer, name, x, zero=True) > 1:
        raise ValueError(f"{layer}: {name} is {x}; expected a number from 0 to 1")
    return float(x)


def not_negative(layer: str, name: str, x: Any) -> Any:
    """x, which must be a finite number of at least 0."""
    positive(layer, name, x, zero=True)
    return x


#: The checks of numbers that are not integers of at least 1, by their names in all layers.
_NUMBERS: Mapping[str, Callable[[str, str, Any], Any]] = {
    "dropout": probability, "eps": not_negative, "norm_eps": not_negative,
}  # fmt: skip


def keywords(method: F) -> F:
    """Wrap a method to name its keyword-only arguments if it is given others, or too many by
    position.  Numbers that a constructor takes are checked, and its signature shows `Factory`'s."""
    signature = inspect.signature(method)
    *others, last = signature.parameters.values()
    if last.kind is last.VAR_KEYWORD:
        signature = signature.replace(parameters=[*others, *_FACTORY])
    parameters = signature.parameters
    by_place = [x.name for x in parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD][1:]
    by_name = [x.name for x in parameters.values() if x.kind is x.KEYWORD_ONLY]
    known = *by_place, *by_name
    constructs = method.__name__ == "__init__"
    what = "" if constructs else f".{method.__name__}"

    def number(layer: str, name: str, x: Any) -> Any:
        """An argument of a constructor, checked unless it is the default."""
        parameter = parameters[name]
        if x is parameter.default:
            return x
        if name in _NUMBERS:
            return _NUMBERS[name](layer, name, x)
        return integer(layer, name, x) if parameter.annotation in ("int", "int | None") else x

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        layer = f"{type(self).__name__}{what}"
        if len(args) > len(by_place):
            raise TypeError(
                f"{layer}: {len(args)} arguments are given by position; "
                f"expected {' and '.join(by_place)}, and by keyword {', '.join(by_name)}"
            )
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{layer}: {name} is not an argument; expected {_instead(name, known)}"
                )
        if constructs:
            args = tuple(number(layer, *x) for x in zip(by_place, args, strict=False))
            options = {name: number(layer, name, x) for name, x in options.items()}
        return method(self, *args, **options)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return with_own_code(checked)


def with_own_code(function: Any) -> Any:
    """A copy of a function; torch.compile counts the versions that it compiled of each code."""
    code = function.__code__.replace(co_name=function.__name__)
    copy = FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function)


def _instead(name: str, known: Sequence[str]) -> str:
    """What to pass in place of an argument that a method does not have."""
    hint = _HINTS.get(name, "")
    return hint if hint.partition(",")[0] in known else ", ".join(known)


def multiple(layer: str, of: tuple[str, int], by: tuple[str, int]) -> int:
    """The first number divided by the second; both come with their names."""
    if of[1] % by[1]:
        raise ValueError(
            f"{layer}: {of[0]} is {of[1]}; expected a multiple of {by[0]}, which is {by[1]}"
        )
    return of[1] // by[1]


def index(layer: str, name: str, x: Any, count: int) -> None:
    """Raise an error unless x is an integer from 0 to count - 1."""
    if isinstance(x, bool) or not isinstance(x, int):
        raise TypeError(f"{layer}: {name} is {x!r}; expected an integer")
    if not 0 <= x < count:
        raise ValueError(f"{layer}: {name} is {x}; expected 0 to {count - 1}")


def tensor(layer: str, name: str, x: Any, expected: str = "") -> None:
    """Raise an error unless x is a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer}: {name} is a {type(x).__name__}; expected a tensor{expected}")


def tokens(layer: str, x: Any, width: int) -> None:
    """Raise an error unless x is a tensor (batch, tokens, width)."""
    _tokens(layer, x, 3, f" (batch, tokens, {width})", width)


def token(layer: str, x: Any, width: int) -> None:
    """Raise an error unless x is a tensor (batch, width)."""
    _tokens(f"{layer}.step", x, 2, f" (batch, {width}), one token", width)


def _tokens(layer: str, x: Any, axes: int, expected: str, width: int) -> None:
    tensor(layer, "x", x, expected)
    if x.is_nested:
        raise TypeError(f"{layer}: x is a nested tensor; expected a plain one, with key_lengths")
    if x.ndim != axes or x.shape[-1] != width:
        raise ValueError(f"{layer}: x has shape {tuple(x.shape)}; expected{expected}")


def memory(layer: str, module: torch.nn.Module, x: Tensor) -> None:
    """Raise an error for parameters on the meta device, which PyTorch would read uninitialised."""
    if x.is_meta or torch.compiler.is_compiling() or not _any_meta(module):
        return
    name = next(name for name, parameter in module.named_parameters() if parameter.is_meta)
    raise TypeError(f"{layer}: {name} is on meta and x on {x.device}; expected one device for all")


def _any_meta(module: torch.nn.Module) -> bool:
    """Whether a parameter is on the meta device, without the cost of `named_parameters`."""
    for parameter in module._parameters.values():
        if parameter is not None and parameter.is_meta:
            return True
    return any([_any_meta(child) for child in module._modules.values() if child is not None])


def state(layer: str, x: Any, kind: type[tuple[Any, ...]], batch: int) -> None:
    """Raise an error unless x is a state of this kind for ``batch`` sequences."""
    if not isinstance(x, kind):
        raise TypeError(
            f"{layer}: state is a {type(x).__name__}; expected a {kind.__name__}, from init_state "
            "or an earlier call"
        )
    given = next(len(field) for field in x if isinstance(field, Tensor))
    if given != batch:
        raise ValueError(f"{layer}: state is of {given} sequences; expected {batch}, as in x")


def key_lengths(layer: str, x: Any, batch: int, n: int, device: torch.device) -> Tensor:
    """Lengths as a tensor (batch,), from 0 to n."""
    if isinstance(x, Sequence):
        x = torch.as_tensor(x, device=device)
    tensor(layer, "key_lengths", x)
    x = integers(layer, "key_lengths", x, None)
    _shape(layer, "key_lengths", x, (batch,), "one per sequence")
    found = values(x)
    if found is not None and found.size and (found.min() < 0 or found.max() > n):
        raise ValueError(
            f"{layer}: key_lengths has values from {found.min()} to {found.max()}; expected 0 to "
            f"{n}, the number of tokens"
        )
    return x


def key_padding_mask(layer: str, x: Any, batch: int, n: int) -> None:
    """Raise an error unless x is a tensor (batch, n) of bools."""
    tensor(layer, "key_padding_mask", x)
    if x.dtype is not torch.bool:
        raise TypeError(
            f"{layer}: key_padding_mask has dtype {x.dtype}; expected bool, True for padding"
        )
    _shape(layer, "key_padding_mask", x, (batch, n), "(batch, tokens)")


def _shape(layer: str, name: str, x: Tensor, shape: tuple[int, ...], what: str) -> None:
    if x.shape != shape:
        raise ValueError(f"{layer}: {name} has shape {tuple(x.shape)}; expected {shape}, {what}")
