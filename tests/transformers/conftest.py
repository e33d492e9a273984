"""Fixtures of the tests of linattn.torch.transformers."""

import pytest
from needed import needing

pytest_pycollect_makemodule = needing("torch", "ml_dtypes", "transformers")


@pytest.fixture(autouse=True)
def _unpatched(one_torch_thread):
    from linattn.torch import patched

    assert patched() == []
    yield
    assert patched() == []
