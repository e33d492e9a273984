"""Calls of recurrences: the registry, and the ways from arguments to gufuncs."""
