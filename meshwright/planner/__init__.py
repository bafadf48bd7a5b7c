"""From a Program and a cluster to a Plan, and what can be said about one."""
