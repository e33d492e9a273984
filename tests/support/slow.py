"""Parameters that are marked slow."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    return [pytest.param(x, marks=pytest.mark.slow) for x in values]


def crossed(quick: Callable[..., bool], *axes: Iterable[Any]) -> list[Any]:
    """The product of the axes, slow but for what is `quick`."""
    return [
        pytest.param(*values, marks=() if quick(*values) else pytest.mark.slow)
        for values in product(*axes)
    ]


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
