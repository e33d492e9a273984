"""Functions of other libraries' arrays, made from those of NumPy arrays, and their stubs."""
