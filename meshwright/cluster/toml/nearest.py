"""Figures that a file leaves out: those of the nearest known device or link, each noted with where it comes from."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

from meshwright.cluster.collective_table import link_table, measured_links
from meshwright.cluster.device import Device
from meshwright.cluster.hosts import (
    HOSTS,
    NETWORK_STEP_S,
    OVERHEAD_SOURCE,
    PLAYBOOK,
    QUIET,
    RING_SOURCE,
    RING_STEP_S,
    TAPER,
)
from meshwright.cluster.origins import FROM, origin, shipped_name, sources_of
from meshwright.cluster.presets import NCCL_OVERHEAD_S
from meshwright.cluster.profile_load import device_of, shipped

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class Nearest:
    """Stands in for what is left out of one file and keeps a note of it; `use` is false where nothing is to be
    added."""

    def __init__(self, backend: str, file: str) -> None:
        self.use = backend == "nccl"
        self.notes: dict[str, str] = {}
        self.own: dict[str, str] = {}
        """Figures that the file gives."""
        self._file = Path(file).name
        self._devices: list[str] = []

    def device(self, name: str, peaks: dict[str, float], memory_bytes: float, bandwidth: float) -> Device:
        """The shipped device of this name, or else the one whose rates are nearest, of two alike the module."""
        found = shipped_name(name) or min(
            (each for each in shipped() if device_of(each).kind == "cuda"),
            key=lambda each: (_apart(device_of(each), peaks, memory_bytes, bandwidth), "PCIe" in each),
        )
        self._devices.append(found)
        return device_of(found)

    def given(self, field: str) -> None:
        self.own[field] = f"given by {self._file}"

    def note(self, field: str, value: str, like: str, *origins: str) -> None:
        """origins: where the known one has the figure from, and where that is from."""
        self.notes[field] = FROM.join([f"left out: {value}, as {like}, the nearest known", *origins])

    def note_device(self, name: str, field: str, value: str, like: Device) -> None:
        """A figure of device `name` that is taken from `like`, with where that one has it from."""
        stem = {"profile": "tables"}.get(field, field).partition(".")[0]
        keys = [key for key in sources_of(like.profile) if key.partition(".")[0] == stem]
        hops = [f"{key} of {hop}" if len(keys) > 1 else hop for key in keys for hop in origin(like.profile, key)]
        self.note(f"{name}.{field}", value, like.name, *hops)

    def overhead_s(self) -> float:
        if self.use:
            self.note("overhead_s", f"{NCCL_OVERHEAD_S * 1e6:g} us", "every NCCL cluster", OVERHEAD_SOURCE)
        return NCCL_OVERHEAD_S if self.use else 0.0

    def inner(self, field: str, given: dict[str, Any], bandwidth: float) -> dict[str, Any]:
        """latency, efficiency or a measured table of a link between the devices of a host."""
        if not self.use:
            return {}
        found: dict[str, Any] = {}
        if "latency" not in given:
            found["latency"] = RING_STEP_S
            self.note(f"{field}.latency_s", f"{RING_STEP_S * 1e6:g} us", "hosts of H100", RING_SOURCE)
        if "efficiency" not in given and "measured" not in given:
            found["measured"] = self._link(bandwidth)
            source = str(link_table(found["measured"])["source"])
            self.note(f"{field}.efficiency", "collectives as measured", found["measured"], source)
        return found

    def outer(self, field: str, given: dict[str, Any]) -> dict[str, Any]:
        """latency, efficiency and taper of a network."""
        if not self.use:
            return {}
        left = {"latency": NETWORK_STEP_S, "efficiency": dict.fromkeys(_KINDS, QUIET), "taper": TAPER}
        found = {key: value for key, value in left.items() if key not in given}
        shown = {"latency": f"{NETWORK_STEP_S * 1e6:g} us", "efficiency": f"{QUIET:g}", "taper": f"{TAPER:g}"}
        for key in found:
            name = "latency_s" if key == "latency" else key
            self.note(f"{field}.{name}", shown[key], "2 to 64 hosts of 8 H100", PLAYBOOK)
        return found

    def _link(self, bandwidth: float) -> str:
        """Of the device's own hosts where the bandwidth is about theirs, else of the nearest bandwidth."""
        own = [HOSTS[each].inner for each in self._devices if each in HOSTS]
        near = [link for link in own if link.measured and 0.5 <= bandwidth / link.bandwidth <= 2.0]
        if near:
            return near[0].measured
        return min(measured_links(), key=lambda name: abs(log(link_table(name)["bandwidth"] / bandwidth)))


def _apart(device: Device, peaks: dict[str, float], memory_bytes: float, bandwidth: float) -> float:
    """How far the rates of a known device are from those given, in logarithms."""
    known = dict(device.peaks)
    shared = [abs(log(known[dtype] / rate)) for dtype, rate in peaks.items() if dtype in known]
    rates = sum(shared) / len(shared) if shared else 3.0
    missing = 0.5 * sum(dtype not in known for dtype in peaks)
    sizes = abs(log(device.memory_bandwidth / bandwidth)) + 0.25 * abs(log(device.memory_bytes / memory_bytes))
    return rates + missing + sizes
