"""meshwright: finds the fastest training plan that fits, explains it, and runs it."""
