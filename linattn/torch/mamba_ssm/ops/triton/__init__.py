"""The functions that mamba_ssm writes in Triton."""
