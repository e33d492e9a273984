"""The language models of mamba_ssm."""
