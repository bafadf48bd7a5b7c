"""Prices of ops: of Programs (`op`) and of traced graphs (`traced`), read from device profiles and nowhere else."""
