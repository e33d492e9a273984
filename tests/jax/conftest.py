"""Fixtures of the tests of linattn.jax, and what these need."""

import os

import pytest
from needed import needing

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

pytest_pycollect_makemodule = needing("jax", "ml_dtypes", test_xla_ffi=())


@pytest.fixture
def wide():
    """64 bits, in all threads, those of devices as well."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
