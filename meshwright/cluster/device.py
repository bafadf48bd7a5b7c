"""Device: what one accelerator (or CPU process) can do, in FLOP/s, bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cluster.frozen import HashedOnce
from meshwright.errors import ClusterError

DEVICE_KINDS = ("cuda", "cpu")

# A dtype the hardware has no unit for is computed in the next wider one that it has.
_FALLBACK = {"float4": "float8", "float8": "bfloat16", "bfloat16": "float32", "float16": "float32", "tf32": "float32"}


@dataclass(frozen=True, slots=True)
class Achievable:
    """The fraction of peak that ops of one kind reach: `fraction * work / (work + half_work)`.

    `work` is FLOPs for kinds bound by arithmetic (`matmul`, `attention`, `convolution`) and bytes for `memory`.
    `half_work` is the size at which an op reaches half of its best: small ops do not fill a device.
    """

    kind: str
    fraction: float
    half_work: float = 0.0

    def at(self, work: float) -> float:
        return self.fraction * work / (work + self.half_work) if self.half_work else self.fraction


@dataclass(frozen=True, slots=True)
class Device(HashedOnce):
    """One device type. `peaks` are dense FLOP/s by dtype; `memory_bandwidth` is bytes per second.

    `profile`: a shipped device profile by its name, or the path of one; without it prices are those of the kind's
    reference, at this device's rates.
    """

    name: str
    kind: str
    peaks: tuple[tuple[str, float], ...]
    memory_bytes: int
    memory_bandwidth: float
    launch_s: float
    reserve_bytes: int = 0
    achievable: tuple[Achievable, ...] = ()
    profile: str = ""

    __hash__ = HashedOnce.__hash__

    def peak_flops(self, dtype: str) -> float:
        """Dense peak in FLOP/s; a dtype without units of its own falls back to the next wider one."""
        rate = self._rate(dtype)
        if rate is None:
            raise ClusterError(
                f"device {self.name} has no peak rate for {dtype}",
                f"one of {[name for name, _ in self.peaks]}",
                "add the rate to the device's `peaks`",
            )
        return rate

    def _rate(self, dtype: str) -> float | None:
        peaks, wanted = dict(self.peaks), dtype
        while wanted not in peaks and wanted in _FALLBACK:
            wanted = _FALLBACK[wanted]
        return peaks.get(wanted)

    def computes(self, dtype: str) -> bool:
        """Whether there is a rate for this dtype, its own or a wider one's."""
        return self._rate(dtype) is not None

    def has_units(self, dtype: str) -> bool:
        """Whether it multiplies in this dtype at a rate of its own."""
        return dtype in dict(self.peaks)

    def achievable_fraction(self, kind: str, work: float = float("inf")) -> float:
        """Fraction of peak for an op of this kind and size; 1 for kinds about which nothing is known."""
        for entry in self.achievable:
            if entry.kind == kind:
                return entry.fraction if work == float("inf") else entry.at(work)
        return 1.0

    @property
    def usable_bytes(self) -> int:
        return self.memory_bytes - self.reserve_bytes

    def limit_bytes(self, memory_bytes: int | None, headroom: float = 0.0) -> int:
        """What a plan may fill: a limit that was given, at its word; at most all but `headroom` of what is usable."""
        most = int((1 - headroom) * self.usable_bytes)
        return most if memory_bytes is None else min(memory_bytes, most)

    def verify(self) -> None:
        if self.kind not in DEVICE_KINDS:
            raise ClusterError(f"device {self.name}: kind is {self.kind!r}", " or ".join(DEVICE_KINDS), "correct it")
        figures = {
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth": self.memory_bandwidth,
            "usable_bytes": self.usable_bytes,
            **{f"peaks.{dtype}": rate for dtype, rate in self.peaks},
        }
        for name, value in figures.items():
            if not value > 0:
                raise ClusterError(f"device {self.name}: {name} is {value}", "a positive figure")
        if self.launch_s < 0 or self.reserve_bytes < 0:
            raise ClusterError(f"device {self.name}: launch_s or reserve_bytes is negative", "zero or more")
        if not self.peaks:
            raise ClusterError(f"device {self.name} has no peak rates", "at least `float32`")
        for entry in self.achievable:
            if not 0 < entry.fraction <= 1 or entry.half_work < 0:
                raise ClusterError(
                    f"device {self.name}: achievable.{entry.kind} is {entry}", "0 < fraction <= 1, half_work >= 0"
                )


def slowest(devices: tuple[Device, ...]) -> Device:
    """What a mesh of mixed devices can count on: the worst of each figure, since its ranks wait for each other."""
    if len(set(devices)) == 1:
        return devices[0]
    named = sorted({dtype for device in devices for dtype, _ in device.peaks})
    dtypes = [dtype for dtype in named if all(device.computes(dtype) for device in devices)]
    kinds = sorted({entry.kind for device in devices for entry in device.achievable})
    smallest = min(devices, key=lambda device: device.usable_bytes)
    return Device(
        name="+".join(sorted({device.name for device in devices})),
        kind=devices[0].kind,
        peaks=tuple((dtype, min(device.peak_flops(dtype) for device in devices)) for dtype in dtypes),
        memory_bytes=smallest.memory_bytes,
        memory_bandwidth=min(device.memory_bandwidth for device in devices),
        launch_s=max(device.launch_s for device in devices),
        reserve_bytes=smallest.reserve_bytes,
        achievable=tuple(_worst(kind, devices) for kind in kinds),
    )


def _worst(kind: str, devices: tuple[Device, ...]) -> Achievable:
    entries = [entry for device in devices for entry in device.achievable if entry.kind == kind]
    return Achievable(kind, min(e.fraction for e in entries), max(e.half_work for e in entries))
