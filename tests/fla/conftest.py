"""Fixtures of the tests of linattn.torch.fla, what they need, and those of `patch_fla` besides."""

import pytest
from needed import needing

FLA = "torch", "ml_dtypes", "triton", "fla"
PATCHED = "patch", "patch_cache", "patch_mamba3", "patch_models", "patch_modules", "patch_naive"

pytest_pycollect_makemodule = needing(*FLA[:2], **{f"test_{x}": FLA for x in PATCHED})


@pytest.fixture(scope="module")
def fla_patched():
    from linattn.torch import patch_fla

    with patch_fla():
        yield
