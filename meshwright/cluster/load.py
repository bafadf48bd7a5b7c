"""load_cluster: a preset with a host count, a device with a count, or the path of a TOML file."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from meshwright.cluster.hosts import ALIASES
from meshwright.cluster.presets import devices_of, preset
from meshwright.cluster.toml.read import read_cluster
from meshwright.cluster.topology import Cluster
from meshwright.errors import ClusterError
from meshwright.sizes import is_whole

_MOST_HOSTS = 100_000


def load_cluster(text: str | PathLike[str]) -> Cluster:
    """`local`, `local:3` (3 processes), `dgx-h100:32` (32 hosts), `h100:4x8` (4 hosts of 8), or a path to a TOML
    file."""
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
            raise ClusterError(
                f"cluster file {text!r}: {error.strerror}", "a readable TOML file", "check the path"
            ) from error
        except UnicodeDecodeError as error:
            raise ClusterError(f"cluster file {text!r} is not text in UTF-8", "a TOML file") from error
    name, colon, count_text = text.partition(":")
    if name.lower() in ALIASES:
        cluster = devices_of(name.lower(), *_hosts_and_devices(text, count_text))
        cluster.verify()
        return cluster
    counted = is_whole(count_text) and not _too_many(count_text)
    if colon and not counted:
        raise ClusterError(
            f"cluster {text!r}", f"a whole number of hosts from 1 to {_MOST_HOSTS} after the colon", "write dgx-h100:4"
        )
    cluster = preset(name, int(count_text or 1))
    cluster.verify()
    return cluster


def _hosts_and_devices(text: str, count_text: str) -> tuple[int, int]:
    """`8`: so many devices in one host; `4x8`: four hosts of eight."""
    parts = (count_text or "1").lower().split("x")
    if len(parts) < 3 and any(part.isascii() and part.isdecimal() and _too_many(part) for part in parts):
        most = f"at most {_MOST_HOSTS:,} hosts, and at most as many devices in a host"
        raise ClusterError(f"cluster {text!r}", most, "write a smaller number, such as h100:4x8")
    if len(parts) > 2 or not all(map(is_whole, parts)):
        raise ClusterError(
            f"cluster {text!r}", "a number of devices, or hosts x devices, after the colon", "write h100:8 or h100:4x8"
        )
    return (1, int(parts[0])) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def _too_many(digits: str) -> bool:
    """By their number first: Python refuses to read thousands of them."""
    short = digits.lstrip("0")
    return len(short) > len(str(_MOST_HOSTS)) or int(short or "0") > _MOST_HOSTS
