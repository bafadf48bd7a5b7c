"""What a traced segment may keep, make again, chunk and offload, and what each of these takes and holds."""
