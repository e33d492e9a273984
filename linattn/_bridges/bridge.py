"""Functions of other libraries' arrays, made from those of NumPy arrays and the registry.

A `Bridge` (one of `rows`) says in what they differ: which parameters are left out or added,
what arrays are called, which errors there are.  `recurrences` makes a function for every
recurrence, `made` makes one from any function of the package::

    from .._bridges.bridge import made, recurrences
    from .._bridges.rows import TORCH

    if TYPE_CHECKING:
        from .._signatures.torch import *  # noqa: F403

    _functions = recurrences(
        TORCH,
        forward=lambda r: OPERATORS[r.name].forward,  # called (operands, **options)
        step=lambda r: OPERATORS[r.name].step,  # called (operands, state, **options)
    )
    _functions["linformer"] = made(linattn.linformer, TORCH, LINFORMER, example=...)
    globals().update(_functions)
    __all__ = [*_functions]

Each is an ordinary Python function, compiled from its signature, with a docstring that the template
of NumPy's makes (`_docs.templates`).  For type checkers ``python -m linattn._bridges.stubs``, which
a build runs, writes the same signatures to linattn/_signatures.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import linattn

from .._core.compiled import calling
from .._docs import templates
from ..operators.registry import RECURRENCES

if TYPE_CHECKING:
    from .._call.recurrence import Recurrence
    from .._core.layout import Operand

    Function = Callable[..., Any]

F = TypeVar("F", bound="Callable[..., Any]")


class Added(NamedTuple):
    """A keyword that NumPy's functions do not have; None by default."""

    name: str
    annotation: str
    text: str  #: its entry in the section Parameters, from its second line on
    everywhere: bool = True  #: else only recurrences whose sequences can be cut have it
    forms: tuple[str, ...] = ("forward", "backward", "step")


class Bridge(NamedTuple):
    """In what functions of another library's arrays differ from those of NumPy arrays."""

    module: str  #: where they are defined
    public: str  #: where users find them
    imports: str  #: what the annotations need, as a line of code
    summary: str  #: a sentence, with a place for {name}
    given: str  #: the annotation of an operand
    made: str  #: the annotation of a result
    blocks: bool = False  #: whether it cuts sequences, of recurrences that allow it
    words: templates.Vocabulary = templates.NUMPY
    annotations: Mapping[str, str] = {}  #: of parameters that take other types than NumPy's
    without: tuple[str, ...] = ()  #: parameters left out, paragraphs and errors
    added: tuple[Added, ...] = ()
    raises: tuple[templates.Raised, ...] = ()  #: beside NumPy's, or in place of those alike
    notes: tuple[tuple[str, str], ...] = ()  #: a parameter ("" for all functions), and a remark
    functions: tuple[str, ...] = ()  #: those beside the recurrences
    examples: Mapping[
        str, str
    ] = {}  #: by form of recurrence, with places for {function}, {name}, {operands}


class Made(NamedTuple):
    """A function of a recurrence that a bridge has."""

    name: str
    recurrence: Recurrence
    form: str  #: "forward", "backward" or "step"
    added: tuple[Added, ...]


def functions(bridge: Bridge) -> Iterator[Made]:
    """Those of all recurrences."""
    for r in RECURRENCES.values():
        cut = r.transition is not None and not r.cross
        for form in bridge.examples if r.transition is not None or not bridge.blocks else ():
            if form != "step" or not r.cross:
                added = (x for x in bridge.added if form in x.forms and (x.everywhere or cut))
                yield Made(r.names[form], r, form, tuple(added))


def recurrences(bridge: Bridge, **calls: Callable[[Any], Function]) -> dict[str, Function]:
    """By name, functions of all recurrences.

    ``forward``, ``backward`` or ``step`` give, for a recurrence, what the function of that form
    calls: with the operands in the registry's order (None for those left out), then the gradient of
    the output or the state, then options by name.
    """
    return {
        name: made(
            getattr(linattn, name), bridge, calls[form](r), [x.name for x in r.operands],
            added=added,
            example=bridge.examples[form].format(
                function=f"{bridge.public}.{name}", name=name, **_example(r.operands)
            ),
        )
        for name, r, form, added in functions(bridge)
    }  # fmt: skip


def made(
    function: Function,
    bridge: Bridge,
    call: Function,
    operands: Sequence[str] = (),
    *,
    added: Sequence[Added] = (),
    example: str = "",
    raises: Sequence[templates.Raised] = (),
) -> Any:
    """A bridge's function with the name and the parameters of one of the package.

    It calls ``call`` with its arguments as they are, but ``operands`` as a tuple, which goes first.
    ``example`` and ``raises`` stand in place of the bridge's.
    """
    signature = signature_of(function, bridge, added)
    result = calling(call, function.__name__, signature, bridge.module, operands)
    if function.__doc__ is not None:  # python -OO
        summary = bridge.summary.format(name=function.__name__)
        texts = _sections(function, signature.parameters, bridge, added, raises, summary)
        if example:
            texts["Examples"] = inspect.cleandoc(example)
        result.__doc__ = templates.joined(texts)
    return result


def documented(
    function: Function, bridge: Bridge, raises: Sequence[templates.Raised] = ()
) -> Callable[[F], F]:
    """Gives what is written by hand the docstring of a function or class of the package.

    Its own docstring begins with its summary, and has sections that stand in place of the others.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is not None and function.__doc__ is not None:  # python -OO
            own = templates.split(inspect.cleandoc(f.__doc__))
            takes = inspect.signature(f).parameters
            texts = _sections(function, takes, bridge, (), raises, own.pop(""))
            f.__doc__ = templates.joined(texts | own)
        return f

    return decorate


def signature_of(
    function: Function, bridge: Bridge, added: Sequence[Added] = ()
) -> inspect.Signature:
    """The signature of a bridge's function."""
    signature = inspect.signature(function)
    parameters = [
        x.replace(annotation=bridge.annotations.get(name) or _named(x.annotation, bridge))
        for name, x in signature.parameters.items()
        if name not in bridge.without
    ]
    parameters += [
        Parameter(x.name, Parameter.KEYWORD_ONLY, default=None, annotation=x.annotation)
        for x in added
    ]  # fmt: skip
    result = _named(signature.return_annotation, bridge)
    if "return_state" in bridge.without:
        result = result.partition(" | ")[0]
    return signature.replace(parameters=parameters, return_annotation=result)


def _named(annotation: str, bridge: Bridge) -> str:
    """An annotation of NumPy's, with the bridge's arrays."""
    names = {"ArrayLike": bridge.given, "Array": bridge.made}
    if "exact_state" in bridge.without:
        names["ReturnState"] = "bool"
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], annotation)


def _sections(
    function: Function,
    takes: Collection[str],
    bridge: Bridge,
    added: Sequence[Added],
    raises: Sequence[templates.Raised],
    summary: str,
) -> dict[str, str]:
    """The docstring of a bridge's function, by sections."""
    texts = templates.sections(
        function, takes, bridge.words, without=bridge.without, raises=bridge.raises
    )
    if raises:
        texts["Raises"] = templates.listed(raises, takes)
    texts[""] = f"{texts[''].strip()}\n\n{summary.strip()}"
    entries = (inspect.cleandoc(x.text) for x in added)
    texts["Parameters"] = "\n".join((texts.get("Parameters", ""), *entries))
    remarks = [text for name, text in bridge.notes if not name or name in takes]
    texts["Notes"] = "\n\n".join((texts.get("Notes", "").rstrip(), *remarks))
    return texts


def _example(operands: Sequence[Operand]) -> dict[str, str]:
    """The operands that may not be left out, made from x, and the shapes of x and of the output.

    x has n tokens of width 2, or of one head of width 1 where there are gates; the n tokens serve
    as a batch where the function takes one token.
    """
    needed = [x for x in operands if not x.optional]
    if "g" in operands[0].dims:
        made = {"ngd": "x", "gdd": "x[:, :1]", "gd": "x[:, 0]"}
        listed = ", ".join(made[x.dims.replace("h", "")] for x in needed)
        return {"operands": listed, "shape": "4, 4, 1, 1", "result": "4, 1, 1"}
    values = {(True, 0): "x[..., 0]", (True, 1): "x", (False, 1): "x[0]", (False, 2): "x[:2]"}
    listed = ", ".join(values[x.has_tokens, len(x.dims) - x.has_tokens] for x in needed)
    return {"operands": listed, "shape": "3, 2", "result": "3, 2"}
