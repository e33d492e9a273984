"""Every recurrence, by name."""

from __future__ import annotations

from importlib import import_module

from .._call.recurrence import Recurrence
from . import FUNCTIONS

#: In the order of their modules, which all have been imported here.
RECURRENCES: dict[str, Recurrence] = {
    r.name: r
    for module in FUNCTIONS
    for r in vars(import_module(f".{module}", __package__)).values()
    if isinstance(r, Recurrence)
}
