"""Docstrings: templates, the paragraphs that they share, and those of gufuncs."""
