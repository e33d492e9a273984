"""Models of fla with `patch_fla` against fla's own kernels, which Triton's interpreter runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import output

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "support" / "fla_interpreter.py"
#: Those whose kernels take float32 and run in the interpreter.
NAMES = ("Comba", "GLA", "GatedDeltaNet", "HGRN2", "KDA", "LinearAttention", "RWKV7", "RetNet")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_against_the_kernels_of_fla(name):
    found, logits, gradients = output(PROGRAM, name).split()
    assert found == name
    # float32 over two layers; kernels of chunks round differently
    assert float(logits) < 1e-5 and float(gradients) < 1e-4
