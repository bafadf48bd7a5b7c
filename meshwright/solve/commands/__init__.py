"""The commands that plan, explain, simulate and plot."""
