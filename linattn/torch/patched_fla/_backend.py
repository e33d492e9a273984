"""linattn as a backend in fla's registry of backends, for functions that fla dispatches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._patch.patching import are_here

TYPE = "linattn"


def registry_of(function: Any) -> Any:
    """The registry by which fla dispatches this function; None if it does not."""
    from fla.backends import BackendRegistry

    while function is not None:
        for cell in getattr(function, "__closure__", None) or ():
            if isinstance(cell.cell_contents, BackendRegistry):
                return cell.cell_contents
        function = getattr(function, "__wrapped__", None)
    return None


@functools.cache
def _kind() -> type:
    from fla.backends import BaseBackend

    class LinattnBackend(BaseBackend):  # type: ignore[misc]
        """Takes calls whose tensors are all in the CPU's memory."""

        backend_type = TYPE
        priority = -1  # before all of fla's

        def __init__(self) -> None:
            super().__init__()
            self.functions: dict[str, Callable[..., Any]] = {}

        def verify(self, function_name: str, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
            if function_name not in self.functions:
                return False, "linattn does not have it"
            if not are_here(args) or not are_here(kwargs.values()):
                return False, "a tensor is not in the CPU's memory"
            return True, None

        def get_implementation(self, function_name: str) -> Callable[..., Any] | None:
            return self.functions.get(function_name)

    return LinattnBackend


class Registered:
    """A function of linattn in one of fla's registries, with the methods of a `Place`."""

    def __init__(self, registry: Any, name: str, original: Any, ours: Callable[..., Any]) -> None:
        self.registry = self.owner = registry
        self.name, self.original, self.ours = name, original, ours
        self._key = original.__name__

    @property
    def _backend(self) -> Any:
        return self.registry._backends.get(TYPE)

    @property
    def is_ours(self) -> bool:
        backend = self._backend
        return backend is not None and backend.functions.get(self._key) is self.ours

    def put(self) -> None:
        if self._backend is None:
            self.registry.register(_kind()())
        self._backend.functions[self._key] = self.ours

    def restore(self) -> None:
        if not self.is_ours:
            return
        del self._backend.functions[self._key]
        if not self._backend.functions:
            del self.registry._backends[TYPE]
