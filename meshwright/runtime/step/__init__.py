"""One step on a rank: instructions played on real tensors, micro-batches, traffic with other stages."""
