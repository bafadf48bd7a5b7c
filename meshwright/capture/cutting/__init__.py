"""From a flat list to segments: where it may be cut, what repeats, mixtures of experts as one op."""
