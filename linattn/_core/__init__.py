"""What every call is made of: arguments and their checks, dtypes, gufuncs, sums of gradients."""
