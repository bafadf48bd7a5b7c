"""What outlives a run: checkpoints, weights for other programs, the position in the data."""
