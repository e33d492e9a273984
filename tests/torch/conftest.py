"""Fixtures of the tests of linattn.torch, and what these need."""

import pytest
from needed import needing

TORCH = "torch", "ml_dtypes"

pytest_pycollect_makemodule = needing(
    *TORCH, test_install_as=(*TORCH, "transformers"), test_nn_mamba=(*TORCH, "transformers"),
    test_xlstm=(*TORCH, "xlstm"),
)  # fmt: skip


@pytest.fixture
def forgotten():
    """Nothing is compiled: the same lambda for every case would be too many versions of one."""
    import torch

    torch._dynamo.reset()


@pytest.fixture
def seeded(forgotten, one_torch_thread):
    """Seed PyTorch."""
    import torch

    torch.manual_seed(5)
