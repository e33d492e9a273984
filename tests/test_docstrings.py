"""Every public function says what it takes, and its examples run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import linattn

SECTIONS = ("Parameters", "Returns", "Raises", "Notes", "References", "Examples")
OPERATORS = (
    "causal",
    "noncausal",
    "causal_backward",
    "noncausal_backward",
    "delta",
    "delta_backward",
    "delta_step",
)
MODULES = [
    "linattn",
    *(module.name for module in pkgutil.walk_packages(linattn.__path__, "linattn.")),
]
OPTIONAL = ("linattn.torch", "linattn.jax", "linattn.dask")  # need what they bridge to


@pytest.mark.parametrize("name", [name for name in MODULES if name != "linattn.__main__"])
def test_examples(name):
    if name in OPTIONAL:
        pytest.importorskip(name.removeprefix("linattn."))
    failures, _ = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    assert failures == 0


@pytest.mark.parametrize("name", OPERATORS)
def test_sections(name):
    f = getattr(linattn, name)
    for section in SECTIONS:
        assert f"{section}\n{'-' * len(section)}" in inspect.getdoc(f), section
    for parameter in inspect.signature(f).parameters:
        assert parameter in f.__doc__


def test_public_names():
    assert {*OPERATORS, "ufuncs", "show_config", "get_num_threads"} <= set(linattn.__all__)
    for name in linattn.__all__:
        assert getattr(linattn, name).__doc__, name
