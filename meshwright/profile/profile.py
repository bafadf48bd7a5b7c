"""The Profile: what a training step computes and needs, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from meshwright.capture.precision import Precision
from meshwright.errors import VerifyError
from meshwright.profile.liveness import SavedValue
from meshwright.profile.saved import DeviceKind
from meshwright.profile.static import Implementation, Optimizer, Static

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class SegmentProfile:
    """Segments of one graph in like surroundings, `count` of them; every figure is for one.

    FLOPs as torch.utils.flop_counter counts; `..._causal_flops` with causal attention at its true half. Bytes: read
    and written by the ops. Saved: what stays for backward, values under their names in the graph. Transient: the
    most that one phase adds to what lies there anyway, saved values of its own included.
    """

    name: str
    count: int
    ops: int
    forward_flops: int
    backward_flops: int
    forward_causal_flops: int
    backward_causal_flops: int
    forward_bytes: int
    backward_bytes: int
    saved: tuple[SavedValue, ...]
    forward_transient_bytes: int
    backward_transient_bytes: int

    @property
    def saved_bytes(self) -> int:
        return sum(value.bytes for value in self.saved)

    @property
    def transient_bytes(self) -> int:
        return max(self.forward_transient_bytes, self.backward_transient_bytes)


@dataclass(frozen=True, slots=True)
class Peak:
    """The worst moment of the step: the segment and op that run then, and what the bytes are made of."""

    bytes: int
    phase: Phase
    segment: str
    op: str
    parts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return "optimizer" if self.phase == "optimizer" else f"{self.phase} of {self.segment}, at {self.op}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One training step of a Program. `params` counts numbers, tied ones once."""

    batch: int
    device: DeviceKind
    precision: Precision
    optimizer: Optimizer
    implementation: Implementation
    params: int
    static: Static
    batch_bytes: int
    prologue: SegmentProfile
    segments: tuple[SegmentProfile, ...]
    distinct_segments: int
    saved_bytes: int
    peak: Peak
    phase_peaks: tuple[Peak, ...]
    profile_seconds: float
    """CPU seconds."""

    def total(self, figure: str) -> int:
        """A figure of all segments, the prologue included."""
        rows = (self.prologue, *self.segments)
        return sum(int(getattr(row, figure)) * row.count for row in rows)

    @property
    def forward_flops(self) -> int:
        return self.total("forward_flops")

    @property
    def step_flops(self) -> int:
        return self.forward_flops + self.total("backward_flops")

    @property
    def peak_bytes(self) -> int:
        return self.peak.bytes

    def largest_saved(self, limit: int = 10) -> list[tuple[str, SavedValue, int]]:
        """(segment, value, how many of it), the most bytes in all first."""
        rows = [(row, value) for row in (self.prologue, *self.segments) for value in row.saved]
        rows.sort(key=lambda item: -item[0].count * item[1].bytes)
        return [(row.name, value, row.count) for row, value in rows[:limit]]

    def verify(self) -> None:
        _same("saved bytes of the segments", self.total("saved_bytes"), self.saved_bytes)
        _same("the parts of the peak", sum(size for _, size in self.peak.parts), self.peak.bytes)
        _same("the largest peak of a phase", max(peak.bytes for peak in self.phase_peaks), self.peak.bytes)
        for row in (self.prologue, *self.segments):
            if row.count < 1 or min(row.transient_bytes, row.saved_bytes, row.forward_flops) < 0:
                raise VerifyError(f"segment {row.name} has a negative figure", "counts of FLOPs and bytes")
        if self.peak.bytes < self.static.resident_bytes:
            raise VerifyError(f"a peak of {self.peak.bytes} bytes", f"at least {self.static.resident_bytes} bytes")

    def to_json(self, capture_seconds: float | None = None) -> dict[str, Any]:
        """The figures as JSON has them; `capture_seconds` is the caller's to know."""
        return {
            "batch": self.batch,
            "device": self.device,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "optimizer_implementation": self.implementation,
            "params": self.params,
            "forward_flops": self.forward_flops,
            "step_flops": self.step_flops,
            "forward_causal_flops": self.total("forward_causal_flops"),
            "step_causal_flops": self.total("forward_causal_flops") + self.total("backward_causal_flops"),
            "forward_bytes": self.total("forward_bytes"),
            "backward_bytes": self.total("backward_bytes"),
            "saved_bytes": self.saved_bytes,
            "peak_bytes": self.peak.bytes,
            "peak_at": str(self.peak),
            "peak_parts": dict(self.peak.parts),
            "phase_peak_bytes": {peak.phase: peak.bytes for peak in self.phase_peaks},
            "static": asdict(self.static),
            "batch_bytes": self.batch_bytes,
            "distinct_segments": self.distinct_segments,
            "segments": [_row(row) for row in self.segments],
            "prologue": _row(self.prologue),
            "largest_saved": [
                {"segment": segment, "name": value.name, "auxiliary": value.auxiliary, "bytes": value.bytes, "count": n}
                for segment, value, n in self.largest_saved()
            ],
            "capture_seconds": capture_seconds,
            "profile_seconds": self.profile_seconds,
        }


def _row(row: SegmentProfile) -> dict[str, Any]:
    names = "name count ops forward_flops backward_flops forward_causal_flops backward_causal_flops forward_bytes"
    names += " backward_bytes saved_bytes transient_bytes forward_transient_bytes backward_transient_bytes"
    return {name: getattr(row, name) for name in names.split()}


def _same(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise VerifyError(f"{what}: {found}", str(expected))
