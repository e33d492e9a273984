"""The functions of mamba_ssm."""
