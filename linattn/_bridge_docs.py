"""Docstrings of functions of other arrays, from those of the NumPy functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_TITLES = ("", "Parameters", "Returns", "Raises", "Notes", "References", "Examples")
_SECTION = re.compile(r"^(\w+)\n-+\n", re.M)
_ENTRY = re.compile(r"^\S.*\n(?: +.*\n)*", re.M)
#: Advice that is none where maps do not rescale as they go.
RESCALING = {", or take\n`linattn.feature_maps.PositiveRandomFeatures`, which rescale": ""}
_NAME = re.compile(r"``(\w+)``")


class Bridge(NamedTuple):
    """In what functions of other arrays differ from those of `linattn`."""

    words: Mapping[str, str] = {}  #: for NumPy's
    parameters: str = ""  #: its own, and those that stand for NumPy's
    raises: str = ""  #: in place of NumPy's
    also_raises: str = ""  #: beside NumPy's
    notes: str = ""  #: after NumPy's, one line a condition
    example: str = ""  #: in place of NumPy's; {call} is a call of it, x for every operand


def like(function: Callable[..., Any], bridge: Bridge) -> Callable[[F], F]:
    """Gives f the docstring of a NumPy function, restricted to what f takes.

    f's own begins with what it is, and may have sections that stand in place of NumPy's.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is None or function.__doc__ is None:  # python -OO
            return f
        takes = [name.lstrip("*") for name in inspect.signature(f).parameters]
        absent = inspect.signature(function).parameters.keys() - set(takes)
        theirs = _sections(_translated(inspect.cleandoc(function.__doc__), bridge.words))
        own = _sections(inspect.cleandoc(f.__doc__))
        parameters = _entries(theirs.get("Parameters", "")) | _entries(bridge.parameters)
        raises = _entries(bridge.raises or theirs.get("Raises", ""))
        for error, text in _entries(bridge.also_raises).items():
            raises[error] = raises.get(error, f"{error}\n") + text.partition("\n")[2]
        returns = _entries(theirs.get("Returns", "")).values()
        made = {
            "Parameters": restricted(_in_order(parameters, takes), takes),
            "Returns": "".join(x for x in returns if absent.isdisjoint(_NAME.findall(x))),
            "Raises": restricted("".join(raises.values()), takes),
            "Notes": f"{theirs.get('Notes', '').rstrip()}\n\n{restricted(bridge.notes, takes)}",
            "Examples": _called(f, bridge.example)
            if bridge.example
            else _moved(f, theirs.get("Examples", "")),
        }
        whole = theirs | made | own | {"": f"{theirs[''].rstrip()}\n\n{own['']}"}
        f.__doc__ = "\n\n".join(
            f"{title}\n{'-' * len(title)}\n{text}" if title else text
            for title in _TITLES
            if (text := whole.get(title, "").strip())
        )
        return f

    return decorate


def _translated(text: str, words: Mapping[str, str]) -> str:
    if not words:
        return text
    pattern = rf"\b({'|'.join(map(re.escape, words))})(s?)\b"
    return re.sub(pattern, lambda found: words[found[1]] + found[2], text)


def _sections(text: str) -> dict[str, str]:
    """By title, "" for what stands before the first."""
    first, *rest = _SECTION.split(text)
    return {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))


def _entries(text: str) -> dict[str, str]:
    """Of a section, by their first lines up to the colon."""
    found = _ENTRY.findall(inspect.cleandoc(f"\n{text}") + "\n")
    return {x.partition("\n")[0].partition(" : ")[0]: x for x in found}


def _in_order(parameters: Mapping[str, str], takes: Sequence[str]) -> str:
    """Those that are taken, in the order of the signature."""
    place = {name: i for i, name in enumerate(takes)}
    at = {names: place.get(names.split(",")[0].lstrip("*"), -1) for names in parameters}
    return "".join(parameters[x] for x in sorted(parameters, key=at.__getitem__) if at[x] >= 0)


def _called(f: Callable[..., Any], example: str) -> str:
    """An example, of f."""
    operands = [
        "x[:, 0]" if name in ("g", "beta") else "x"
        for name, x in inspect.signature(f).parameters.items()
        if x.default is x.empty
    ]
    call = f"{f.__module__}.{f.__name__}({', '.join(operands)})"
    return inspect.cleandoc(example).replace("{call}", call)


def _moved(f: Callable[..., Any], example: str) -> str:
    """NumPy's, of f: it has to give the same."""
    example = re.sub(r"\blinattn\.(?=\w+\()", f"{f.__module__}.", example)
    return re.sub(
        r"\bimport numpy as np, linattn$", rf"\g<0>{f.__module__[7:]}", example, flags=re.M
    )


def restricted(text: str, takes: Collection[str]) -> str:
    """Without what lines that begin with "If" or "With" say of parameters that are not taken."""
    lines = []
    for line in text.split("\n"):
        if line.lstrip().startswith(("If ``", "With ``")):
            before, *parts = line.split("``")
            count = 1
            while parts[count] in (", ", " or "):
                count += 2
            names = [f"``{x}``" for x in parts[:count:2] if x in takes]
            if not names:
                continue
            listed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            line = f"{before}{listed}{'``'.join(parts[count:])}"
        lines.append(line)
    return "\n".join(lines)
