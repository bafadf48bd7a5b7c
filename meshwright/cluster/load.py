"""load_cluster: a preset with a host count, or the path of a TOML file."""

from __future__ import annotations

from pathlib import Path

from meshwright.cluster.presets import preset
from meshwright.cluster.toml_read import read_cluster
from meshwright.cluster.topology import Cluster
from meshwright.errors import ClusterError


def load_cluster(text: str) -> Cluster:
    """`local`, `local:3` (3 processes), `dgx-h100:32` (32 hosts), or a path to a TOML file."""
    if text.endswith(".toml"):
        try:
            return read_cluster(Path(text).read_text(), text)
        except OSError as error:
            raise ClusterError(f"cluster file {text!r}: {error.strerror}", "a readable TOML file") from error
    name, _, count_text = text.partition(":")
    if count_text and (not count_text.isdigit() or int(count_text) < 1):
        raise ClusterError(f"cluster {text!r}", "a whole number of hosts after the colon", "write dgx-h100:4")
    cluster = preset(name, int(count_text or 1))
    cluster.verify()
    return cluster
