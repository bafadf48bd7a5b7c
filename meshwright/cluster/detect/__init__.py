"""Detection: a running job measures its own machines and returns them as a Cluster. `lead` decides, `worker` obeys."""
