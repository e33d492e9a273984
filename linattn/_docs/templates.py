"""Docstrings from templates.

A line ``$name`` of a template stands for the paragraph of that name in `paragraphs`.  A parameter
that the template does not describe has the entry of the function that the template follows
(`filled_like`), or else the paragraph of its own name.  The section Raises is likewise filled in.

A function of NumPy arrays fills its template itself (`filled`).  A bridge fills the same template
with its own words, parameters and errors (`sections`; see `_bridges.bridge`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .._linattn import operators
from ..feature_maps import NAMES
from . import paragraphs
from .errors import ERRORS
from .errors import Raised as Raised

F = TypeVar("F", bound=Callable[..., Any])


class Vocabulary(NamedTuple):
    """The words of a docstring for arrays."""

    given: str = "array_like"  #: the type of an operand
    made: str = "ndarray"  #: the type of a result
    array: str = "an array"
    arrays: str = "arrays"
    library: str = "NumPy"
    refused: str = "complex, masked, or not numbers"


NUMPY = Vocabulary()
TITLES = ("", "Parameters", "Returns", "Yields", "Raises", "Notes", "References", "Examples")

#: Sections that a template has from the function that it follows.
_INHERITED = {"Raises", "References"}
_MAPS = f"{{{', '.join(map(repr, NAMES))}}}"
#: By name of a paragraph: the parameter without which it is left out.
NEEDS = {
    "packed_state": "cu_seqlens",
    "final_state": "return_state",
    "exact_state": "return_state",
}
#: By module and name of a function: its template, by sections.
_TEMPLATES: dict[tuple[str, str], dict[str, str]] = {}


def filled(f: F) -> F:
    """f, with the docstring that its template makes."""
    return filled_like(None)(f)


def filled_like(base: Callable[..., Any] | None) -> Callable[[F], F]:
    """`filled`, with parameters, errors and references from ``base`` if the template has none."""

    def fill(f: F) -> F:
        if f.__doc__ is not None:  # python -OO
            inherited = _template(base) if base else {}
            _TEMPLATES[f.__module__, f.__qualname__] = _completed(f, inherited)
            f.__doc__ = joined(sections(f, inspect.signature(f).parameters))
        return f

    return fill


def sections(
    f: Callable[..., Any],
    takes: Collection[str],
    words: Vocabulary = NUMPY,
    *,
    without: Collection[str] = (),
    raises: Sequence[Raised] = (),
) -> dict[str, str]:
    """The docstring of f by titles; "" is the title of the text before the first section.

    It describes a function with the parameters ``takes``, without the paragraphs and errors of the
    names ``without``.  ``raises`` are more conditions; one replaces that of its error and names.
    """
    if _takes_complex(f):
        words = words._replace(refused=words.refused.removeprefix("complex, ").removeprefix("or "))
    places = _places(f) | words._asdict()  # some of the former have words in them
    left_out = {*without, *(name for name, needed in NEEDS.items() if needed not in takes)}
    made = {}
    for title, text in _template(f).items():
        if text.strip() == "$raises":
            instead = {x[:2] for x in raises if x.names}
            rows = (x for x in ERRORS if x.error not in without and x[:2] not in instead)
            text = listed((*rows, *raises), takes)
        text = _expanded(text, left_out)
        if title in ("Parameters", "Returns"):
            text = text.replace("array_like", words.given).replace("ndarray", words.made)
        if title == "Parameters":
            text = "\n".join(x for x in _entries(text) if not _names(x).isdisjoint(takes))
        for name, word in places.items():
            text = text.replace(f"{{{name}}}", word)
        made[title] = text
    return made


def _template(f: Callable[..., Any]) -> dict[str, str]:
    """The template of f by sections, or its docstring if it has none."""
    made = _TEMPLATES.get((f.__module__, f.__qualname__))
    return made or split(inspect.cleandoc(f.__doc__ or ""))


def _completed(f: Callable[..., Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """The docstring of f as a template that describes every parameter, in their order."""
    texts = split(inspect.cleandoc(f.__doc__ or ""))
    entries: dict[str, str] = {}
    for text in (texts.get("Parameters", ""), inherited.get("Parameters", "")):
        for entry in _entries(_expanded(text, (), keep=NEEDS)):
            entries = dict.fromkeys(_names(entry), entry) | entries
    takes = _parameters(f)
    # Gradients and steps have paragraphs of their own for some parameters of the forward.
    form = "_step" if "in_place" in takes else "_backward" if "grad_state" in takes else ""
    each = []
    for x in takes:
        own = PARAGRAPHS.get(f"{x}{form}") if form else None
        each.append(own or entries.get(x) or _expanded(f"${x}", (), keep=NEEDS))
    texts["Parameters"] = "\n".join(dict.fromkeys(each))
    return {"Raises": "$raises"} | {x: inherited[x] for x in _INHERITED & {*inherited}} | texts


def _places(f: Callable[..., Any]) -> dict[str, str]:
    """The words of paragraphs that depend on f."""
    takes = _parameters(f)
    default = takes["feature_map"].default if "feature_map" in takes else None
    found = {"maps": _MAPS, "default": repr(default)}
    found |= {"kind": "State", "holder": "a State", "or_z": " or a wrong ``z``"}
    state = takes.get("state", takes.get("initial_state"))
    if state is not None and "State" not in str(state.annotation):
        found |= {"holder": "{array}", "or_z": ""}
    elif state is not None and "SLSTMState" in str(state.annotation):
        found |= {"kind": "SLSTMState", "holder": "an SLSTMState", "or_z": ""}
    if "normalize" in takes:
        return found | {
            "state": "``s`` (..., d, m) and ``z`` (..., d)",
            "packed": "they are (..., r, d, m) and (..., r, d)",
            "scaled": "phi(q), also in the denominator",
        }
    return found | {
        "state": "``s`` (..., d, m) and ``z`` None",
        "packed": "``s`` is (..., r, d, m)",
        "scaled": "the output",
    }


def _takes_complex(f: Callable[..., Any]) -> bool:
    row = operators.get(f.__name__)
    return row is not None and row["complex"]


def _parameters(f: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(f).parameters


def joined(texts: Mapping[str, str]) -> str:
    """A docstring from its sections, in numpydoc's order."""
    return "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{text.strip()}" if title else text.strip()
        for title in TITLES
        if (text := texts.get(title, "").strip())
    )


def split(text: str) -> dict[str, str]:
    """The sections of a docstring by titles; "" is the title of the text before the first."""
    lines = text.split("\n")
    titles = [i for i, line in enumerate(lines[1:]) if line and line == "-" * len(lines[i])]
    found = {"": "\n".join(lines[: titles[0] if titles else None])}
    for first, end in zip(titles, [*titles[1:], len(lines)], strict=False):
        found[lines[first]] = "\n".join(lines[first + 2 : end])
    return found


#: By name; none under python -OO.
PARAGRAPHS = {name: text.strip("\n") for name, text in split(paragraphs.__doc__ or "").items()}


def _expanded(text: str, left_out: Collection[str], keep: Collection[str] = ()) -> str:
    """The paragraphs in place of their names, except for the names to keep."""
    lines = []
    for line in text.split("\n"):
        name = line[1:]
        if not line.startswith("$") or name in keep:
            lines.append(line)
        elif name not in left_out:
            lines.append(_expanded(PARAGRAPHS[name], left_out, keep))
    return "\n".join(lines)


def _entries(text: str) -> list[str]:
    """The entries of the section Parameters."""
    found: list[str] = []
    for line in filter(None, text.strip().split("\n")):
        if line.startswith((" ", "$")):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _names(entry: str) -> set[str]:
    """The parameters that an entry describes."""
    return {x.strip().lstrip("*") for x in entry.partition(" : ")[0].split(",")}


def listed(rows: Iterable[Raised], takes: Collection[str]) -> str:
    """Errors, each with its conditions."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if sentence := row.sentence(takes):
            found.setdefault(row.error, []).append(f"    {sentence}")
    return "\n".join("\n".join((error, *lines)) for error, lines in found.items())
