"""Which ops couple the samples of a batch."""
