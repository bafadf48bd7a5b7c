"""Generate: a plan's sharded segments, as graphs, pairs and readable code."""
