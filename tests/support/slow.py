"""Parameters that are marked slow."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    return [pytest.param(x, marks=pytest.mark.slow) for x in values]


def first_of_each(
    cases: Iterable[Sequence[Any]], ids: Iterable[str], *, unpack: bool = True
) -> list[Any]:
    """The cases with their ids, slow but for the first of each function, whose name is item 0."""
    seen, params = set(), []
    for case, id_ in zip(cases, ids, strict=True):
        marks = pytest.mark.slow if case[0] in seen else ()
        seen.add(case[0])
        params.append(pytest.param(*case if unpack else (case,), id=id_, marks=marks))
    return params
