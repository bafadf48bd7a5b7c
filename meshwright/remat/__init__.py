"""Rematerialisation of a traced segment: what it may keep, recompute, chunk and offload, with seconds and bytes."""
