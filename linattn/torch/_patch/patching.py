"""What patches of other libraries share: the object that they return, and their places."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

_ABSENT: Any = object()  #: an attribute that its owner inherits


class Place(NamedTuple):
    """A function that was replaced."""

    owner: Any  #: a module or a class
    attribute: str
    name: str  #: with that of the module
    original: Any
    ours: Any

    @property
    def is_ours(self) -> bool:
        return vars(self.owner).get(self.attribute) is self.ours

    def put(self) -> None:
        setattr(self.owner, self.attribute, self.ours)

    def restore(self) -> None:
        """Put the original back, unless another program has replaced ours since then."""
        if not self.is_ours:
            return
        if self.original is _ABSENT:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.original)


def own(owner: Any, attribute: str) -> Any:
    """What the owner itself has under this name, for `Place.original`."""
    return vars(owner).get(attribute, _ABSENT)


#: Every library that has patches.
_LIBRARIES: list[Library] = []


class Library:
    """A library whose functions linattn replaces, and the patches of it that are active.

    ``put`` replaces the functions, with `replace`, and ``leave`` is called before the library's own
    are put back.
    """

    def __init__(
        self, name: str, put: Callable[[], None], leave: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self._put, self._leave = name, put, leave
        self.places: list[Any] = []  # those replaced, with the attributes of a `Place`
        self.lock = threading.RLock()  # guards these:
        self.is_active = False
        self.kept: set[Patch] = set()  # patches that are not used as contexts
        self.entered: dict[Patch, int] = {}  # contexts, and how often each has been entered
        _LIBRARIES.append(self)

    def put(self, patch: Patch) -> None:
        """Replace the functions, also those of modules that were imported since the last call.

        The patch ends if that fails: a warning may be an error.
        """
        self.is_active = True
        try:
            self._put()
        except BaseException:
            self.release(patch)
            raise

    def release(self, *patches: Patch) -> None:
        """End these patches, and restore the functions if no other is active."""
        for patch in patches:
            self.kept.discard(patch)
            self.entered.pop(patch, None)
        if not self.kept and not self.entered:
            self.is_active = False
            self._leave()
            while self.places:
                self.places.pop().restore()

    def replace(self, place: Any) -> None:
        """Replace a function at its place."""
        self.places.append(place)
        place.put()

    def warn(self, name: str, problem: str, stacklevel: int) -> None:
        """Warn of a function that is not the one that is known, and not replaced."""
        version = getattr(sys.modules.get(self.name), "__version__", "of no version")
        warnings.warn(
            f"linattn.torch.patch_{self.name}: {self.name} {version}: {name}{problem}; it is left "
            "as it is",
            stacklevel=stacklevel,
        )

    def names(self) -> list[str]:
        """The functions that are replaced at present."""
        return [x.name for x in self.places if x.is_ours]


def patched() -> list[str]:
    """The functions of other libraries that linattn replaces at present.

    Returns
    -------
    list of str
        Sorted, such as ``"transformers.models.mamba2.modeling_mamba2.mamba2_chunk_scan"`` or
        ``"fla.ops.gla.chunk.chunk_gla"``; only of modules that are imported.
    """
    return sorted(name for library in _LIBRARIES for name in library.names())


class Patch:
    """What `linattn.torch.patch_transformers` and the like return: a context, with `undo`.

    Functions stay patched while any thread is within such a context, or until a call without a
    context is undone.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        with library.lock:
            library.kept.add(self)
            library.put(self)

    def undo(self) -> None:
        """Restore every function of the library, whichever call patched it.

        While other contexts are active they stay patched, until the last of these ends.  A
        function that another program has replaced since then stays as that program left it.
        """
        library = self._library
        with library.lock:
            library.release(self, *library.kept)

    def __enter__(self) -> Self:
        library = self._library
        with library.lock:
            library.kept.discard(self)
            library.entered[self] = library.entered.get(self, 0) + 1
            if not library.is_active:  # another thread has undone it since
                library.put(self)
        return self

    def __exit__(self, *exception: object) -> None:
        library = self._library
        with library.lock:
            left = library.entered.get(self, 1) - 1
            if left:
                library.entered[self] = left
            else:
                library.release(self)

    def __repr__(self) -> str:
        count = len(self._library.names())
        return f"<{count} functions of {self._library.name} run on linattn>"


def is_here(x: Any) -> bool:
    """Whether x is in the CPU's memory, or not a tensor."""
    return not isinstance(x, Tensor) or (x.is_cpu and x.layout is torch.strided)


def are_here(values: Iterable[Any]) -> bool:
    """The same of several values, and of those in tuples and lists."""
    return all(are_here(x) if isinstance(x, (tuple, list)) else is_here(x) for x in values)


def for_cpus(original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function where all tensors are in the CPU's memory, and the original elsewhere.

    The original also runs where the function returns NotImplemented; it may be None.
    """

    @functools.wraps(function if original is None else original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if are_here(args) and are_here(kwargs.values()):
            result = function(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return original(*args, **kwargs)

    return run


def parameters(function: Callable[..., Any], keyword_only: bool = True) -> list[str]:
    """A signature without annotations, and with or without what only keywords give."""
    given = inspect.signature(function).parameters.values()
    return [
        str(x.replace(annotation=x.empty))
        for x in given
        if keyword_only or x.kind is not x.KEYWORD_ONLY
    ]


def names_in(module: ModuleType, values: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """The module's names of these values, which are given by their ids."""
    for name, value in list(vars(module).items()):
        if id(value) in values:
            yield name, values[id(value)]
