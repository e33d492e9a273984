"""A stand-in for the package mamba_ssm, on CPUs."""

from .ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__version__ = "2.3.2.post1+linattn"

__all__ = ["mamba_inner_fn", "selective_scan_fn"]
