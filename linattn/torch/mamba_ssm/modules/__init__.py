"""The layers of mamba_ssm."""
