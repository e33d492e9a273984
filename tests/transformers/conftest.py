"""Fixtures of the tests of linattn.torch.transformers."""

import pytest
from needed import needing

pytest_pycollect_makemodule = needing("torch", "ml_dtypes", "transformers")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Use one thread: models this small are slower on two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _unpatched():
    from linattn.torch import patched

    assert patched() == []
    yield
    assert patched() == []
