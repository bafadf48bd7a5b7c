"""Clusters as TOML: read with every fault named by line and field, and written."""
