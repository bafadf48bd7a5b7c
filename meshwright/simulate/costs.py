"""What the simulator is told: seconds and bytes of segments, of transfers between stages, and who shares a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from meshwright.errors import PlanError, counted
from meshwright.plan import FrontierPoint

LEAST_S = -1e-9
"""Less than nothing by so little is that of adding seconds in another order."""


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What one segment takes and holds; a FrontierPoint's figures, and what only a list of Instructions asks for.

    Per micro-batch: forward_s, the halves of a backward, recompute_s of a `recompute` (what is recomputed inside a
    backward is in backward_input_s). Per step: first_s of all its gathers, last_s of all its reductions, scatter_s of
    them after each micro-batch; overlappable_s: what of these overlaps compute; step_s: the optimizer.
    departures: in how many parts gradients leave while a whole backward runs. forward_wire_s, backward_wire_s: of the
    segment's own collectives, those on the lane's links; forward_comm_s, backward_comm_s: all of them. The host's
    seconds to ask for it: forward_host_s, backward_host_s, recompute_host_s per micro-batch, step_host_s.

    gradient_bytes: what of static_bytes is there only from the segment's first backward on. restored_bytes: what of
    backward_transient_bytes a `recompute` brings back, held until backward is over; all of it unless said. rest_bytes:
    held from the input half of a backward to its weight half; all that was held before unless said. added_bytes: what
    of backward_transient_bytes is not there once gradients of another micro-batch are, to which its own are added as
    they are made. late_bytes: of gradients until a reduction that overlaps compute is over. early_bytes: of
    parameters from their gather to the run that reads them, whose transients they are among. away_bytes: of what is
    kept, what waits on the host; away_s: of the copy there, and of that back. link_s: of first_s, copies of weights
    from the host. Of parameters whose optimizer state is on the host: hosted_step_s of their updates, fetch_state_s and
    put_state_s of the copies before and after them, state_bytes on the device meanwhile."""

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    step_s: float = 0.0
    overlappable_s: float = 0.0
    static_bytes: int = 0
    resident_bytes: int = 0
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0
    recompute_s: float = 0.0
    gradient_bytes: int = 0
    restored_bytes: int | None = None
    rest_bytes: int | None = None
    added_bytes: int = 0
    late_bytes: int = 0
    forward_wire_s: float = 0.0
    backward_wire_s: float = 0.0
    forward_comm_s: float = 0.0
    backward_comm_s: float = 0.0
    scatter_s: float = 0.0
    departures: int = 1
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    recompute_host_s: float = 0.0
    step_host_s: float = 0.0
    early_bytes: int = 0
    away_bytes: int = 0
    away_s: float = 0.0
    link_s: float = 0.0
    hosted_step_s: float = 0.0
    fetch_state_s: float = 0.0
    put_state_s: float = 0.0
    state_bytes: int = 0

    @classmethod
    def of(cls, point: FrontierPoint) -> SegmentCost:
        return cls(
            point.forward_s,
            point.backward_input_s + point.slowed_s,
            point.backward_weight_s,
            point.first_s,
            point.last_s,
            point.step_s,
            point.hideable_s,
            point.static_bytes,
            point.resident_bytes,
            point.forward_transient_bytes,
            point.backward_transient_bytes,
            late_bytes=point.late_bytes,
            forward_wire_s=point.forward_wire_s,
            backward_wire_s=point.backward_wire_s,
            scatter_s=point.scatter_s,
            departures=point.departures,
            forward_host_s=point.forward_host_s,
            backward_host_s=point.backward_host_s,
            step_host_s=point.step_host_s,
            early_bytes=point.early_bytes,
        )

    @property
    def update_s(self) -> float:
        """Of the optimizer; of what is on the host, the slowest of copies and updates."""
        return self.step_s + max(self.hosted_step_s, self.fetch_state_s, self.put_state_s)

    @property
    def backward_s(self) -> float:
        return self.backward_input_s + self.backward_weight_s

    @property
    def is_possible(self) -> bool:
        """No seconds are negative, or not a number."""
        return (
            self.forward_s >= LEAST_S <= self.backward_input_s
            and self.backward_weight_s >= LEAST_S <= self.first_s
            and self.last_s >= LEAST_S <= self.step_s
            and self.overlappable_s >= LEAST_S <= self.recompute_s
            and self.hosted_step_s >= LEAST_S <= self.fetch_state_s
        )

    @property
    def restored(self) -> int:
        found = self.backward_transient_bytes if self.restored_bytes is None else self.restored_bytes
        return min(found, self.backward_transient_bytes)

    def overlapped_share(self, kind: str) -> float:
        """The share of a `gather` or `reduce` that may overlap compute: reductions come first."""
        if kind == "reduce":
            return min(1.0, self.overlappable_s / self.last_s) if self.last_s else 0.0
        return max(0.0, self.overlappable_s - self.last_s) / self.first_s if self.first_s else 0.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message between stages: latency, then seconds on the wire when nobody else uses its links.

    sent_bytes, received_bytes: what one rank holds of it at each end while it is under way. links: names; messages that
    are on the wire at the same time and share a link get equal parts of it. kept: the sender holds it until the step is
    over: gloo says that a message has left only to whoever waits for it.
    """

    seconds: float
    latency_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    links: tuple[str, ...] = ()
    kept: bool = False


FREE = Transfer(0.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """transfers: by (segment, from stage, to stage); a gradient goes from the reader's stage to the maker's. Those not
    named are free. overlap: gathers and reductions overlap compute as far as their points say. buffers: unfinished
    sends that a stage may have to another; any number if None. ranks: how many ranks each stage has, all alike; one if
    not said. cores: what a stage computes on where others do too: those that compute at the same time get equal parts
    of it. last: of the last micro-batch, where that is smaller than the others: seconds and bytes of its forward,
    backward and messages.
    """

    segments: Sequence[SegmentCost]
    transfers: Mapping[tuple[int, int, int], Transfer] = field(default_factory=dict)
    overlap: bool = False
    buffers: int | None = None
    ranks: Sequence[int] | None = None
    cores: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    last: Costs | None = None

    def at(self, last: bool) -> Costs:
        """What holds for a micro-batch."""
        return self.last if last and self.last is not None else self

    def check(self, stages: int, segments: int) -> None:
        """Raises PlanError unless these are costs of so many stages and segments, none of them less than nothing."""
        if len(self.segments) != segments:
            raise PlanError(
                f"costs of {counted(len(self.segments), 'layer')}",
                f"{segments}, one for each layer of the lists",
                "give one SegmentCost for each layer, in order",
            )
        if self.ranks is not None and len(self.ranks) != stages:
            raise PlanError(
                f"ranks={list(self.ranks)} for {counted(stages, 'stage')}",
                f"{counted(stages, 'number')}, one for each stage",
                "say how many ranks each stage has, or leave it out",
            )
        for index, cost in enumerate(self.segments):
            if not cost.is_possible:
                raise _not_seconds(f"layer {index}", cost)
        for key, transfer in self.transfers.items():
            if not transfer.seconds >= LEAST_S <= transfer.latency_s:
                raise _not_seconds(f"transfer {key}", transfer)
        if self.last is not None:
            self.last.check(stages, segments)


def _not_seconds(whose: str, cost: SegmentCost | Transfer) -> PlanError:
    """Names the first that are not, as NaN is neither more nor less."""
    pairs = [(one.name, getattr(cost, one.name)) for one in fields(cost) if one.name.endswith(("_s", "seconds"))]
    name, seconds = next(pair for pair in pairs if not pair[1] >= LEAST_S)
    return PlanError(f"{whose} has {name}={seconds}", "seconds of 0 or more", "correct it")
