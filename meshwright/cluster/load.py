"""load_cluster: a preset with a host count, or the path of a TOML file."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from meshwright.cluster.presets import preset
from meshwright.cluster.toml.read import read_cluster
from meshwright.cluster.topology import Cluster
from meshwright.cluster.units import is_whole
from meshwright.errors import ClusterError

_MOST_HOSTS = 100_000


def load_cluster(text: str | PathLike[str]) -> Cluster:
    """`local`, `local:3` (3 processes), `dgx-h100:32` (32 hosts), or a path to a TOML file."""
    if not isinstance(text, str | PathLike):
        raise ClusterError(
            f"a cluster given as {text!r}",
            "a preset's name, or the path of a .toml file",
            "write local:2 or dgx-h100:4",
        )
    text = fspath(text)
    if text.endswith(".toml"):
        try:
            return read_cluster(Path(text).read_text(encoding="utf-8"), text)
        except OSError as error:
            raise ClusterError(f"cluster file {text!r}: {error.strerror}", "a readable TOML file") from error
        except UnicodeDecodeError as error:
            raise ClusterError(f"cluster file {text!r} is not text in UTF-8", "a TOML file") from error
    name, colon, count_text = text.partition(":")
    counted = is_whole(count_text) and int(count_text) <= _MOST_HOSTS
    if colon and not counted:
        raise ClusterError(
            f"cluster {text!r}", f"a whole number of hosts from 1 to {_MOST_HOSTS} after the colon", "write dgx-h100:4"
        )
    cluster = preset(name, int(count_text or 1))
    cluster.verify()
    return cluster
