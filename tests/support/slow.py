"""Parameters that are marked slow, and those that one test goes over."""

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import pytest
from table import Case, covering


def slow(*values: Any) -> list[Any]:
    return [pytest.param(x, marks=pytest.mark.slow) for x in values]


def crossed(quick: Callable[..., bool], *axes: Iterable[Any]) -> list[Any]:
    """The product of the axes, slow but for what is `quick`."""
    return [
        pytest.param(*values, marks=() if quick(*values) else pytest.mark.slow)
        for values in product(*axes)
    ]


def grid(quick: Callable[..., bool], **axes: Iterable[Any]) -> pytest.MarkDecorator:
    """A test of the product of the axes, by name, slow but for what is `quick`."""
    params = crossed(quick, *axes.values())
    return pytest.mark.parametrize(
        tuple(axes), params, ids=lambda x: getattr(x, "__name__", str(x))
    )


def only(ids: Iterable[str], params: Iterable[Any]) -> list[Any]:
    """Parameters that have ids, slow but for these."""
    ids = {*ids}
    return [
        pytest.param(*x.values, id=x.id, marks=x.marks if x.id in ids else pytest.mark.slow)
        for x in params
    ]


def first_of_each(
    cases: Iterable[Sequence[Any]],
    ids: Iterable[str],
    *,
    unpack: bool = True,
    kind: Callable[..., Hashable] = itemgetter(0),
) -> list[Any]:
    """The cases with their ids, slow but for the first of each function, whose name is item 0."""
    seen, params = set(), []
    for case, id_ in zip(cases, ids, strict=True):
        marks = pytest.mark.slow if kind(case) in seen else ()
        seen.add(kind(case))
        params.append(pytest.param(*case if unpack else (case,), id=id_, marks=marks))
    return params


def each(cases: Iterable[Case], name: str = "case") -> pytest.MarkDecorator:
    """A test of each case, slow but for those that are `covering`."""
    cases = list(cases)
    quick = covering(cases)
    return grid(lambda case: case in quick, **{name: cases})


def looped(**axes: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with the product of the axes, where a test of each would take less than pytest."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**given: Any) -> None:
            for values in product(*axes.values()):
                chosen = dict(zip(axes, values, strict=True))
                try:
                    test(**given, **chosen)
                except BaseException as error:
                    error.add_note(f"with {chosen}")
                    raise

        signature = inspect.signature(test)
        rest = [x for name, x in signature.parameters.items() if name not in axes]
        run.__signature__ = signature.replace(parameters=rest)
        return run

    return decorate
