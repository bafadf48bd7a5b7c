"""A plan at work: instructions executed, data, optimizer state, checkpoints, launching."""
