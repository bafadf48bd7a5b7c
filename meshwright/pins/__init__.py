"""Pins: decisions that a user takes away from the planner."""
