"""What a traced segment may keep, recompute, chunk and offload, and what each of these takes and holds."""
