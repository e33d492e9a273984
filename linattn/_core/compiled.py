"""Functions of a given signature, compiled from their text, as `dataclasses` does it.

Binding ``*args`` and ``**kwargs`` would slow every call, and leave wrong arguments to be refused.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any


def compiled(
    name: str, signature: inspect.Signature, module: str, result: str, **names: Any
) -> Any:
    """A function of that signature that returns ``result``, an expression in its parameters and in
    ``names``.

    Its module is where it is pickled from.  Tracebacks and debuggers find its text in linecache.
    """
    parameters = signature.parameters.values()
    bare = signature.replace(
        parameters=[x.replace(annotation=x.empty) for x in parameters],
        return_annotation=signature.empty,
    )
    text = (
        f"def make({', '.join(names)}):\n    def {name}{bare}:\n        return {result}\n"
        f"    return {name}\n"
    )
    file = f"<{module}.{name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), vars(sys.modules[module]), scope)
    made = scope["make"](**names)
    made.__qualname__ = name
    made.__annotations__ = {x.name: x.annotation for x in parameters}
    made.__annotations__["return"] = signature.return_annotation
    return made


def calling(
    call: Callable[..., Any],
    name: str,
    signature: inspect.Signature,
    module: str,
    operands: Sequence[str] = (),
) -> Any:
    """A function of that signature that calls ``call`` with its arguments: ``operands`` as a tuple,
    which goes first, then the others as they are."""
    taken = [x for x in operands if x in signature.parameters]
    arguments = [f"({', '.join(taken)},)"] if taken else []
    places: dict[Any, str] = {Parameter.KEYWORD_ONLY: "{0}={0}", Parameter.VAR_POSITIONAL: "*{0}"}
    for x in signature.parameters.values():
        if x.name not in operands:
            arguments.append(places.get(x.kind, "{0}").format(x.name))
    return compiled(name, signature, module, f"call({', '.join(arguments)})", call=call)
