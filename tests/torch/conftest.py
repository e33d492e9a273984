"""Fixtures of the tests of linattn.torch, and what these need."""

import pytest
from needed import needing

OTHERS = {
    "test_install_as.py": ("transformers",), "test_nn_mamba.py": ("transformers",),
    "test_xlstm.py": ("xlstm",),
}  # fmt: skip

pytest_pycollect_makemodule = needing("torch", "ml_dtypes", also=lambda x: OTHERS.get(x, ()))


@pytest.fixture
def forgotten():
    """Nothing is compiled: the same lambda for every case would be too many versions of one."""
    import torch

    torch._dynamo.reset()


@pytest.fixture
def seeded(forgotten):
    """Seed PyTorch and use one thread, since such small layers are slower on more."""
    import torch

    torch.manual_seed(5)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
