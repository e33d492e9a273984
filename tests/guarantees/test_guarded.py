"""No operator accesses memory outside its arrays."""

import sys
from pathlib import Path

import pytest
from isas import ISAS
from processes import output

pytestmark = [pytest.mark.any_isa, pytest.mark.unsanitized]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects pages as Linux does")
@pytest.mark.parametrize("isa", ISAS)
def test_stays_within_bounds(isa):
    script = Path(__file__).parents[1] / "support" / "guarded.py"
    assert output(script, LINATTN_ISA=isa) == "within bounds\n"
