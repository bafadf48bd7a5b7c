"""Seconds and bytes of ops, conversions, parameters and segments."""
