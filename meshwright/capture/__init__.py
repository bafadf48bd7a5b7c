"""Capture: a model and a batch become a Program."""
