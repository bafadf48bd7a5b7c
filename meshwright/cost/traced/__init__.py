"""Seconds and bytes of the nodes of a traced graph."""
