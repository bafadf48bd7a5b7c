"""Kinds of hosts: their devices, the links inside and between them, each figure with its source.

Inside a host collectives are those of a measured table (`links/`), of the same link or of the nearest one that was
measured. Between hosts the figures are fitted to published bandwidths of 2 to 64 hosts.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from meshwright.cluster.collective_table import link_table
from meshwright.cluster.tree import Link

Sources = tuple[tuple[str, str], ...]

PLAYBOOK = "HF Ultra-Scale Playbook, collectives of 256 MB on 2 to 64 hosts of 8 H100: best of the shown range"
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
QUIET, TAPER = 0.55, 0.1
"""What NCCL reaches of nominal network cards between two hosts, and by which power of their number it falls. The best
of the playbook's range over 2 to 64 hosts is fitted by 0.7 and 0.1 (mean error 7 %), its means by 0.55 and 0.5 with
latencies of 12 and 30 us (14 %): a quiet and a shared network. Scatters on 4 to 128 hosts of 8 H100 fell from 0.90 to
0.65 by the power 0.1 too (NVIDIA/nccl issue 1229). Steps of training find less of the rate than a quiet network has
(docs/accuracy.md)."""
RING_STEP_S, NETWORK_STEP_S = 6e-6, 20e-6
"""A ring's step inside a host and between hosts, fitted with the above: over 512 ranks latency is most of a gather."""
RING_SOURCE = f"of a ring's step through several hosts: {PLAYBOOK}"
OVERHEAD_SOURCE = "NVIDIA/nccl src/graph/tuning.cc: base latency of a ring; tables of hosts have theirs in them"


@dataclass(frozen=True, slots=True)
class Host:
    """A kind of host: how many devices it has at most, the links inside, and the network each host has.

    socket: devices that share one root of the PCIe tree or one NVLink bridge, where that matters; `inner` then joins
    these and `across` their groups, whose level is called `group`.
    """

    device: str
    devices: int
    inner: Link
    network: Link
    sources: Sources
    socket: int = 0
    across: Link | None = None
    group: str = "socket"


class _Network(msgspec.Struct, forbid_unknown_fields=True):
    """sent: what sends reach of the nominal rate."""

    bandwidth: float
    cards: int
    reached: float = QUIET
    taper: float = TAPER
    sent: float = 1.0

    def link(self) -> Link:
        efficiency = [*((kind, self.reached) for kind in _KINDS), *([("send", self.sent)] if self.sent < 1.0 else [])]
        return Link(NETWORK_STEP_S, self.bandwidth, self.cards, efficiency=tuple(efficiency), taper=self.taper)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    """A host in the file. bandwidth: of the link inside, where it is not that of the measured table.

    inside, between, reached: sources of the bandwidths inside and between hosts, and of what collectives reach there.
    """

    device: str
    table: str
    network: _Network
    inside: str
    between: str
    reached: str = "{like_h100}"
    devices: int = 8
    bandwidth: float = 0.0
    socket: int = 0
    across: Link | None = None
    group: str = "socket"
    sources: dict[str, str] = {}

    def host(self, texts: dict[str, str]) -> Host:
        table = link_table(self.table)
        inner = Link(RING_STEP_S, self.bandwidth or float(table["bandwidth"]), measured=self.table)
        sources = {
            "host.bandwidth": self.inside,
            "host.latency_s": RING_SOURCE,
            "host.efficiency": f"{table['source']} ({self.table})",
            "pod.bandwidth": self.between,
            "pod.latency_s": PLAYBOOK,
            "pod.efficiency": f"{self.reached}; others nominal (assumption)",
            "pod.taper": f"{PLAYBOOK}, and NVIDIA/nccl issue 1229, 4 to 128 hosts; means of a shared cluster have 0.5",
            "overhead_s": OVERHEAD_SOURCE,
            **self.sources,
        }
        named = tuple((figure, source.format_map(texts)) for figure, source in sources.items())
        return Host(self.device, self.devices, inner, self.network.link(), named, self.socket, self.across, self.group)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    sources: dict[str, str]
    aliases: dict[str, str]
    host: list[_Row]

    def hosts(self) -> dict[str, Host]:
        texts = {name: text.format(playbook=PLAYBOOK) for name, text in self.sources.items()} | {"playbook": PLAYBOOK}
        return {row.device: row.host(texts) for row in self.host}


_FILE = msgspec.convert(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")), _File)
HOSTS, ALIASES = _FILE.hosts(), _FILE.aliases
"""Hosts by their device; and short names of devices, as in `h100:8`."""
