"""One stage on one mesh: options, segments, boundaries, chains under a budget."""
