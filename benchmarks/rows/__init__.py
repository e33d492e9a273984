"""Tables of rows, a module for each family."""
