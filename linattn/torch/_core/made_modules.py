"""Modules that are made of a table, where files would have a line or two each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Contents = Mapping[str, Mapping[str, Any]]


def make_modules(package: str, contents: Contents) -> None:
    """Make the modules below a package, by their names in it, of their values by name.

    They are in `sys.modules`, and attributes of the modules that they are in, unless that has a
    value of the name.
    """
    for name in sorted(contents):
        full = f"{package}.{name}"
        module = ModuleType(full, f"Made by ``{package}``.")
        module.__spec__ = ModuleSpec(full, None, is_package=True)
        module.__path__ = []
        vars(module).update(contents[name], __all__=sorted(contents[name]))
        sys.modules[full] = module
        parent, _, own = full.rpartition(".")
        vars(sys.modules[parent]).setdefault(own, module)
