"""Seconds of the ops of a Program, on local shapes."""
