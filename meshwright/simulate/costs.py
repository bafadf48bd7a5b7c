"""What the simulator is told: seconds and bytes of segments, of transfers between stages, and who shares a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

from meshwright.errors import PlanError, counted
from meshwright.plan import FrontierPoint

LEAST_S = -1e-9
"""Less than nothing by so little is that of adding seconds in another order."""


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What the simulator plays of one segment: a FrontierPoint's figures, and what only Instructions ask for.

    Seconds per micro-batch:
    forward_s, backward_input_s, backward_weight_s: of each pass; what backward recomputes is in backward_input_s.
    recompute_s: of a `recompute` instruction.
    forward_wire_s, backward_wire_s: the segment's own collectives on the links of the gather lane.
    forward_comm_s, backward_comm_s: all of its own collectives.
    forward_host_s, backward_host_s, recompute_host_s: the host's launches.
    away_s: one copy of offloaded activations to the host, and one back.

    Seconds per step:
    gather_params_s: all gathers of parameters; link_s: of these, copies of weights from the host.
    reduce_grads_s: all reductions; reduce_per_microbatch_s: of these, what follows each micro-batch.
    overlappable_s: of gathers and reductions, what overlaps with compute.
    step_s: the optimizer; step_host_s: the host's launches besides.
    hosted_step_s: updates of parameters whose optimizer state is on the host.
    fetch_state_s, put_state_s: copies of that state before and after them.

    Bytes:
    gradient_bytes: of static_bytes, what is there only from the first backward on.
    restored_bytes: of backward_transient_bytes, what a `recompute` brings back; all of it unless given.
    rest_bytes: held from the input half of a backward to its weight half; all that was held unless given.
    added_bytes: of backward_transient_bytes, what is not needed once gradients are added to those of an earlier
    micro-batch.
    pending_grad_bytes: gradients that wait for a reduction which overlaps with compute.
    prefetched_param_bytes: parameters from their gather to the run that reads them; among that run's transients.
    offloaded_bytes: of what is kept, what waits on the host.
    state_bytes: optimizer state from the host, on the device during its update.

    grad_buckets: equal parts in which gradients leave while a whole backward runs.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    gather_params_s: float = 0.0
    reduce_grads_s: float = 0.0
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
    pending_grad_bytes: int = 0
    forward_wire_s: float = 0.0
    backward_wire_s: float = 0.0
    forward_comm_s: float = 0.0
    backward_comm_s: float = 0.0
    reduce_per_microbatch_s: float = 0.0
    grad_buckets: int = 1
    forward_host_s: float = 0.0
    backward_host_s: float = 0.0
    recompute_host_s: float = 0.0
    step_host_s: float = 0.0
    prefetched_param_bytes: int = 0
    offloaded_bytes: int = 0
    away_s: float = 0.0
    link_s: float = 0.0
    hosted_step_s: float = 0.0
    fetch_state_s: float = 0.0
    put_state_s: float = 0.0
    state_bytes: int = 0

    @classmethod
    def of(cls, point: FrontierPoint) -> SegmentCost:
        backward_input_s, overlappable_s = point.backward_input_s + point.slowed_s, point.async_comm_s
        shared = dict(zip(_SHARED, _shared(point), strict=True))
        return cls(backward_input_s=backward_input_s, overlappable_s=overlappable_s, **shared)

    def scaled(self, share: float) -> SegmentCost:
        """With all seconds of its passes times this."""
        return replace(
            self,
            forward_s=self.forward_s * share,
            backward_input_s=self.backward_input_s * share,
            backward_weight_s=self.backward_weight_s * share,
            recompute_s=self.recompute_s * share,
            forward_wire_s=self.forward_wire_s * share,
            backward_wire_s=self.backward_wire_s * share,
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
            and self.backward_weight_s >= LEAST_S <= self.gather_params_s
            and self.reduce_grads_s >= LEAST_S <= self.step_s
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
            return min(1.0, self.overlappable_s / self.reduce_grads_s) if self.reduce_grads_s else 0.0
        return (
            max(0.0, self.overlappable_s - self.reduce_grads_s) / self.gather_params_s if self.gather_params_s else 0.0
        )


_SHARED = tuple(
    one.name
    for one in fields(FrontierPoint)
    if one.name in SegmentCost.__slots__ and one.name not in ("backward_input_s", "overlappable_s")
)
_shared = attrgetter(*_SHARED)
"""Figures that a point has under the same name."""


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
