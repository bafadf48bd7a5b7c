"""Parameters on a rank: where they come from, how they are stored, gathered and updated, their gradients."""
