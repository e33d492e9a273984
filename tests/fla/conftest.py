"""What the tests of linattn.torch.fla need, and those of `patch_fla` besides."""

from needed import needing

pytest_pycollect_makemodule = needing(
    "torch", "ml_dtypes",
    also=lambda name: ("triton", "fla") if name.startswith("test_patch") else (),
)  # fmt: skip
