"""The bounds for all operands (`bounds.worst`): a search for operands that come close to them.

`search` says what is tried, `LINATTN_TRIES` how many.
"""

from __future__ import annotations

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS
from search import LONG, Shape, Target, check, check_longer, linear, numbers, recurrence, softmax
from table import ATTENTION

pytestmark = pytest.mark.unsanitized


def targets() -> dict[str, Target]:
    found = {}
    for name in ("causal", "noncausal", "causal_backward", "noncausal_backward"):
        for d in (16, 64):
            options = {"feature_map": "identity", "normalize": False}
            found[f"{name}, identity, d = {d}"] = linear(name, d, **options)
            found[f"{name}, elu, normalised, d = {d}"] = linear(name, d)
    for rule in ATTENTION:
        if rule.name != "causal" and "bonus" not in rule.letters:
            for backward in (False, True):
                name = str(rule).replace("l2norm", "identity") + (", backward" if backward else "")
                found[name] = recurrence(rule, 16, backward)
    for name in ("softmax_attention", "softmax_attention_backward"):
        found[name] = softmax(name)
    return found


TARGETS = targets()


@pytest.mark.parametrize("name", TARGETS)
def test_bounds_hold(name, record_property):
    check(TARGETS[name], record_property, 300, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_bounds_hold_for_what_a_search_finds(name, record_property):
    check_longer(TARGETS[name], record_property)


FORWARD = [x for x in TARGETS if "backward" not in x and "erase" not in x and "64" not in x]


@pytest.mark.parametrize("name", FORWARD)
def test_equal_terms_do_not_add_up(name):
    """Thousands of chunks that round alike, where nothing erases what earlier ones wrote."""
    target, rng = TARGETS[name], np.random.default_rng(0)
    for constant in rng.uniform(1, 2, 3)[1:]:
        plain = Shape(float(constant), 0, 0.0, 0)
        arrays = {x: numbers(plain, LONG, 16) for x in target.operands}
        if "a" in arrays:
            arrays["a"][:, ::2] *= -1  # it reads what no key writes
        if "beta" in arrays:
            arrays["beta"] *= 1e-6  # so that next to nothing has been written before
        assert target.errors(arrays) <= target.bound


@pytest.mark.parametrize("name", [x for x in FORWARD if "delta" in x])
@pytest.mark.parametrize("strength", [1e-6, 1e-4])
def test_weak_writes_do_not_drift(name, strength):
    """What they come to is drawn, and so within what drawn operands are."""
    target = TARGETS[name]
    shapes = dict.fromkeys(target.operands, Shape(1.12353, 0, 0.0, 0))
    shapes["v"] = Shape(1.0, 0, 1.0, 0)
    arrays = {x: numbers(shapes[x], 2 * LONG, 16) for x in target.operands}
    arrays["beta"] *= strength
    assert target.errors(arrays) <= DELTA_ROUNDINGS
