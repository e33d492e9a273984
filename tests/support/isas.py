"""The instruction sets of this machine, as parameters of tests."""

import pytest

from linattn._core import settings

BEST = settings.available_isas()[0]
#: All of them, those that are not the best in the slow tests.
ISAS = [
    pytest.param(x, marks=[pytest.mark.any_isa, *([pytest.mark.slow] if x != BEST else [])])
    for x in settings.available_isas()
]
