"""Plans in words: what they do, why, and how two of them differ."""
