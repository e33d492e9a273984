"""The operators: a docstring and one call each."""
