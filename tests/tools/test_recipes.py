"""CONTRIBUTING's recipes for a map and for a recurrence, followed in a copy of the sources.

Whatever else knows of maps and recurrences must read it from the tables.
"""

import re
from pathlib import Path

import pytest
import recipes

MAP_TESTS = (
    "guarantees/test_values.py",
    "guarantees/test_causality.py", "guarantees/test_numerics.py", "guarantees/test_packed.py",
    "guarantees/test_reference.py", "guarantees/test_stages.py", "guarantees/test_state.py",
    "guarantees/test_step.py", "guarantees/test_twin.py", "guarantees/test_ufuncs.py",
    "operators/test_attention.py", "operators/test_delta.py",
    "operators/test_feature_maps.py", "operators/test_gated.py",
    "operators/test_gated_delta.py", "operators/test_mapped.py",
    "operators/test_mapped_rescaled.py",
)  # fmt: skip
RECURRENCE_TESTS = (
    "guarantees/test_bad_input.py", "guarantees/test_bits.py", "guarantees/test_parts.py",
    "guarantees/test_values.py",
    "guarantees/test_adjoint.py", "guarantees/test_bridge.py", "guarantees/test_differential.py",
    "guarantees/test_initial_state.py", "guarantees/test_memory.py", "guarantees/test_module.py",
    "guarantees/test_promotion.py", "guarantees/test_properties.py", "guarantees/test_scratch.py",
    "guarantees/test_shared_gradients.py", "guarantees/test_ufuncs.py", "tools/test_docstrings.py",
    "tools/test_stubs.py",
)  # fmt: skip


@pytest.mark.parametrize(
    "recipe, edits",
    [("An elementwise map", recipes.MAP), ("A recurrence", recipes.RECURRENCE)],
    ids=["map", "recurrence"],
)
def test_files(recipe, edits):
    """A recipe names all files that are edited, and none besides."""
    steps, _, _ = recipes.text_of(recipe).partition("Documentation:")
    named = re.findall(r"`([\w/]+\.(?:h|c|def|py|toml))`", steps)
    assert {Path(x).name for x in named} == {Path(edit.file).name for edit in edits}


@pytest.mark.slow
def test_a_map_and_recurrences(tmp_path):
    """In one build: a map passes the tests of every map; a recurrence is right in every library and
    passes the tests of all recurrences; and another is right whose state has two fields, of which
    one is the scale of the other.  This one has no twin to be tested against."""
    recipes.copy_sources(tmp_path)
    recipes.follow(tmp_path, recipes.MAP + recipes.RECURRENCE + recipes.SCALED_RECURRENCE)
    recipes.run(tmp_path, "setup.py", "-q", "build_ext", "--inplace")
    recipes.run(tmp_path, "-m", "linattn", "selftest")
    for recipe in "recipe", "recipe_scaled":
        pytest_in(tmp_path, f"tests/support/{recipe}/checks.py")
    for new, names in (("square", MAP_TESTS), ("fade", RECURRENCE_TESTS)):
        pytest_in(tmp_path, "-k", f"{new} or not [", *(f"tests/{name}" for name in names))


def pytest_in(folder, *arguments):
    recipes.run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
