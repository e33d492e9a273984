"""Packages that the test modules of a folder need: without them, these modules are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def needing(*names: str, **others: tuple[str, ...]) -> Callable[..., Any]:
    """A hook for a folder's conftest.py; ``others`` has what modules that differ need, by name."""

    class Module(pytest.Module):
        def collect(self):
            for name in others.get(self.path.stem, names):
                pytest.importorskip(name, reason=f"{name} is not installed")
            return super().collect()

    def pytest_pycollect_makemodule(module_path, parent):
        return Module.from_parent(parent, path=module_path)

    return pytest_pycollect_makemodule
