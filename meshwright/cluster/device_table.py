"""Device types of the presets: the shipped profiles, every figure with its source. One without says "assumption"."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.cluster.device import Device
from meshwright.cluster.profile_load import device_of, read_profile, shipped

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SourcedDevice:
    """A device and, per field, where its figure comes from."""

    device: Device
    sources: tuple[tuple[str, str], ...]


def _sourced(name: str) -> SourcedDevice:
    return SourcedDevice(device_of(name), tuple(read_profile(name)["sources"].items()))


class _Gpus(Mapping[str, SourcedDevice]):
    """The shipped profiles of GPUs, each read when it is first asked for."""

    def __init__(self) -> None:
        self._read: dict[str, SourcedDevice] = {}

    def __getitem__(self, name: str) -> SourcedDevice:
        if name not in self._read:
            if name not in list(self):
                raise KeyError(name)
            self._read[name] = _sourced(name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in shipped() if name != "cpu")

    def __len__(self) -> int:
        return sum(1 for _ in self)


GPUS: Mapping[str, SourcedDevice] = _Gpus()


def local_cpu(processes: int) -> SourcedDevice:
    """One of `processes` CPU processes on this machine, with its share of the machine's memory."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // processes
    measured = _sourced("cpu")
    device = replace(measured.device, memory_bytes=memory_bytes, reserve_bytes=min(_GIB // 2, memory_bytes // 4))
    own = {"memory_bytes": "this machine's memory over the number of processes"}
    return SourcedDevice(device, tuple({**dict(measured.sources), **own}.items()))
