"""One token of Mamba-3."""
