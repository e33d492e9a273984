"""Sequences in blocks of tokens: the algebra of their effects, scans, and ranks."""
