"""The definitions: every operator in float64 NumPy, to read and to test against."""
