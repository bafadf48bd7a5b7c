"""load_cluster: a preset with a host count, or the path of a TOML file."""

from __future__ import annotations

from meshwright.cluster.presets import preset
from meshwright.cluster.topology import Cluster
from meshwright.errors import ClusterError


def load_cluster(text: str) -> Cluster:
    """`local`, `local:3` (3 processes), `dgx-h100:32` (32 hosts), or a path to a TOML file."""
    name, _, count_text = text.partition(":")
    count = 1
    if count_text:
        if not count_text.isdigit() or int(count_text) < 1:
            raise ClusterError(f"cluster {text!r}", "a whole number of hosts after the colon", "write dgx-h100:4")
        count = int(count_text)
    cluster = preset(name, count)
    cluster.verify()
    return cluster
