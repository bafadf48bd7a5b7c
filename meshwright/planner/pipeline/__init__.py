"""Pipelines of a Program: submeshes, ranges of segments, offers, and the plan of what was chosen."""
