"""The stage programme on numbers alone: cuts, submeshes, points, schedules, micro-batches."""
