"""Timeline: what the simulator found. Prints, and writes a trace that Perfetto opens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.methods import method
from meshwright.plan import Instruction
from meshwright.plan.units import show_bytes, show_seconds


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One rank of a stage. exposed_s: compute waits for communication that is under way, the collectives of its
    segments among it; host_s: it waits for its host; bubble_s: for anything else. peak_bytes: the most held at once,
    static_bytes of them parameters, gradients and optimizer. launch_s: its host launches a step's kernels."""

    end_s: float
    busy_s: float
    exposed_s: float
    bubble_s: float
    static_bytes: int
    peak_bytes: int
    peak_s: float
    host_s: float = 0.0
    launch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """kind: value or gradient, between stages; gather, reduce, offload or fetch, within one."""

    kind: str
    segment: int
    microbatch: int | None
    source: int
    target: int
    began_s: float
    over_s: float


@dataclass(frozen=True, slots=True)
class Spans:
    """ran: (stage, place in its list, begin, end). memory: for each stage, bytes held from a time on."""

    ran: tuple[tuple[int, int, float, float], ...]
    messages: tuple[Message, ...]
    memory: tuple[tuple[tuple[float, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step. Shares are over all ranks."""

    step_s: float
    stages: tuple[StageTimes, ...]
    ranks: tuple[int, ...]
    lists: tuple[tuple[Instruction, ...], ...]
    spans: Spans | None = None

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they wait for work."""
        return self._share([stage.bubble_s for stage in self.stages])

    @property
    def exposed(self) -> float:
        """The share of all ranks' time in which compute waits for communication under way."""
        return self._share([stage.exposed_s for stage in self.stages])

    @property
    def peak_bytes(self) -> int:
        return max(stage.peak_bytes for stage in self.stages)

    def at_peak(self, stage: int) -> Instruction | None:
        """The instruction of a segment that ran when memory was fullest; None where none did."""
        assert self.spans is not None
        at_s = self.stages[stage].peak_s
        ran = (
            self.lists[number][at]
            for number, at, began_s, over_s in self.spans.ran
            if number == stage and began_s <= at_s < over_s
        )
        return next((one for one in ran if one.segment is not None), None)

    def _share(self, seconds: list[float]) -> float:
        whole_s = self.step_s * sum(self.ranks)
        return sum(n * s for n, s in zip(self.ranks, seconds, strict=True)) / whole_s if whole_s else 0.0

    def __str__(self) -> str:
        host = self._share([stage.host_s for stage in self.stages])
        waits = f"waiting for kernel launches {host:.1%}, " if host > 1e-3 else ""
        lines = [
            f"step {show_seconds(self.step_s)}: bubble {self.bubble:.1%}, exposed communication {self.exposed:.1%}, "
            f"{waits}peak {show_bytes(self.peak_bytes)}"
        ]
        for index, (stage, ranks) in enumerate(zip(self.stages, self.ranks, strict=True)):
            many = f"{ranks} ranks" if ranks > 1 else "1 rank"
            busy, exposed, bubble, peak = map(
                show_seconds, (stage.busy_s, stage.exposed_s, stage.bubble_s, stage.peak_s)
            )
            held = show_bytes(stage.peak_bytes)
            launches = f", kernel launches {show_seconds(stage.host_s)}" if waits else ""
            lines.append(
                f"  stage {index} ({many}): computes {busy}, exposed {exposed}, bubble {bubble}{launches}; "
                f"peak {held} at {peak}"
            )
        return "\n".join(lines)

    def trace(self, path: str | os.PathLike[str], names: Sequence[str] = ()) -> None:
        """Write a Chrome trace that opens in Perfetto, gzipped where the name ends in .gz. names: of the layers, which
        are numbered where none are given."""
        method("Timeline.trace")(self, path, names)
