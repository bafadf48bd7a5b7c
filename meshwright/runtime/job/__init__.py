"""Running as a job: the commands, local processes, scripts for clusters, one rank's work, what a run shows."""
