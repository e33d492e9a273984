"""Mamba-3 of rank one, its token, and its rotations."""
