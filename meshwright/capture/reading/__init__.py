"""From an exported graph to a flat list of ops: functional, keyed, layers written out again."""
