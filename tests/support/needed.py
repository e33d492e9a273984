"""Packages that the test modules of a folder need: without them, these modules are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def needing(
    *names: str, also: Callable[[str], tuple[str, ...]] = lambda name: ()
) -> Callable[..., Any]:
    """A hook for a folder's conftest.py; ``also`` has what a module of some name needs besides."""

    class Module(pytest.Module):
        def collect(self):
            for name in (*names, *also(self.path.name)):
                pytest.importorskip(name, reason=f"{name} is not installed")
            return super().collect()

    def pytest_pycollect_makemodule(module_path, parent):
        return Module.from_parent(parent, path=module_path)

    return pytest_pycollect_makemodule
