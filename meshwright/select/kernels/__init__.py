"""Inner loops over flat arrays, compiled by numba where it is installed (the extra `fast`) and plain Python where
not.
"""
