"""Fixtures of the tests of linattn.torch.fla, what they need, and those of `patch_fla` besides.

The latter are slow as a whole: importing fla takes as long as a hundred of its tests.
"""

import pytest
from needed import needing

FLA = "torch", "ml_dtypes", "triton", "fla"
SUBJECTS = "patch", "patch_cache", "patch_mamba3", "patch_models", "patch_modules", "patch_naive"
PATCHED = [f"test_{x}" for x in SUBJECTS]

pytest_pycollect_makemodule = needing(*FLA[:2], **dict.fromkeys(PATCHED, FLA))


def pytest_ignore_collect(collection_path, config):
    """Quick tests neither need nor import fla."""
    return (collection_path.stem in PATCHED and config.option.markexpr == "not slow") or None


def pytest_itemcollected(item):
    if item.path.stem in PATCHED:
        item.add_marker("slow")


@pytest.fixture(scope="module")
def fla_patched():
    from linattn.torch import patch_fla

    with patch_fla():
        yield
