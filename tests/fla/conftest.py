"""Fixtures of the tests of linattn.torch.fla, what they need, and those of `patch_fla` besides."""

import pytest
from needed import needing

pytest_pycollect_makemodule = needing(
    "torch", "ml_dtypes",
    also=lambda name: ("triton", "fla") if name.startswith("test_patch") else (),
)  # fmt: skip


@pytest.fixture(scope="module")
def fla_patched():
    from linattn.torch import patch_fla

    with patch_fla():
        yield
