"""Mamba-3 of rank above one."""
