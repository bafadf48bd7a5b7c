"""A choice for every segment of a chain: shortest paths, Lagrangian bounds, label-setting programmes, exact forms."""
