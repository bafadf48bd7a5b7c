"""Instruction lists and costs become numbers: what each instruction lasts, waits for, takes and gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshwright.plan import Instruction
from meshwright.plan.instruction import AWAY, BACKWARDS, NESTED, PER_MICROBATCH, RECEIVES, SENDS
from meshwright.schedule.messages import Messages
from meshwright.simulate.costs import FREE, Costs, SegmentCost, Transfer

COMPUTE, BLOCKING, POST, LANE = range(4)
COLLECTIVES, AWAY_LANE, BACK_LANE = range(3)
"""Lanes of a stage: gathers and reductions, copies to the host, copies back."""


@dataclass(slots=True)  # not frozen: setting its fields would take a tenth of a search for many micro-batches
class Action:
    """kind: COMPUTE; BLOCKING, for communication that compute waits for; POST, which begins a message; LANE, which
    begins a job that overlaps compute.

    index: of the instruction it comes from. waits: messages; jobs: (lane, number). takes: bytes from its begin on;
    works: bytes while it lasts; gives: bytes back at its end. moving: of its seconds, the share in which compute waits
    for a collective; wire_s: the seconds of them in which the lane rests. job: what it begins, which lasts lane_s and
    holds late bytes until it is over; of COMPUTE in so many parts, the last at its end. link_s: of lane_s, what it has
    the lane of copies from the host for, first.
    """

    kind: int
    index: int
    seconds: float = 0.0
    waits: tuple[int, ...] = ()
    message: int = -1
    takes: int = 0
    works: int = 0
    gives: int = 0
    moving: float = 0.0
    wire_s: float = 0.0
    jobs: tuple[tuple[int, int], ...] = ()
    job: tuple[int, int] | None = None
    lane_s: float = 0.0
    parts: int = 1
    late: int = 0
    link_s: float = 0.0


@dataclass(slots=True)
class Compiled:
    """Messages are the transfers: `ends` is how many sides have to begin one, `owner` whose buffer its end gives back,
    `names` and `lanes` are for a reader. What computes on a shared core is one too, over that core: `computes`.
    jobs[stage]: names of what overlaps its compute, by (lane, number). host_s: what each stage's host asks for."""

    actions: list[list[Action]]
    static_bytes: list[int]
    host_s: list[float]
    jobs: list[dict[tuple[int, int], tuple[str, int, int | None]]]
    seconds: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    links: list[tuple[str, ...]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    names: list[tuple[str, int, int | None]] = field(default_factory=list)
    lanes: list[tuple[int, int]] = field(default_factory=list)
    computes: set[int] = field(default_factory=set)

    def add(
        self,
        seconds: float,
        latency_s: float,
        links: tuple[str, ...],
        ends: int,
        before: int,
        sent_bytes: int,
        owner: int,
    ) -> int:
        self.seconds.append(seconds)
        self.latency_s.append(latency_s)
        self.links.append(links)
        self.ends.append(ends)
        self.before.append(before)
        self.sent_bytes.append(sent_bytes)
        self.owner.append(owner)
        return len(self.seconds) - 1


def compile_lists(
    lists: Sequence[Sequence[Instruction]], costs: Costs, messages: Messages, spans: bool = True
) -> Compiled:
    """spans: each action has the index of its own instruction. Else actions that only differ in it are one object."""
    made = Compiled([], [0] * len(lists), [0.0] * len(lists), [{} for _ in lists])
    last = _last(lists) if costs.last is not None else None
    for segment, stage in messages.stage_of.items():
        cost = costs.segments[segment]
        made.static_bytes[stage] += cost.static_bytes - cost.gradient_bytes
    for message, (gradient, segment, microbatch, source, target) in enumerate(messages.keys):
        transfer = costs.at(microbatch == last).transfers.get((segment, source, target), FREE)
        before = messages.before[message]
        given_back = 0 if transfer.kept else transfer.sent_bytes
        made.add(transfer.seconds, transfer.latency_s, transfer.links, 2, before, given_back, source)
        made.names.append(("gradient" if gradient else "value", segment, microbatch))
        made.lanes.append((source, target))
    for stage, instructions in enumerate(lists):
        made.actions.append(_Stage(stage, instructions, costs, messages, made, last, spans).compile())
    return made


def _last(lists: Sequence[Sequence[Instruction]]) -> int:
    return max(one.microbatch for instructions in lists for one in instructions if one.microbatch is not None)


class _Stage:
    def __init__(
        self,
        stage: int,
        instructions: Sequence[Instruction],
        costs: Costs,
        messages: Messages,
        made: Compiled,
        last: int | None,
        spans: bool,
    ) -> None:
        self.stage, self.instructions, self.costs, self.messages, self.made = stage, instructions, costs, messages, made
        self.last = last
        counts = Counter((one.kind, one.segment) for one in instructions)
        self.gathers = {segment: n for (kind, segment), n in counts.items() if kind == "gather"}
        self.reduces = {segment: n for (kind, segment), n in counts.items() if kind == "reduce"}
        self.made_by = Counter(one.segment for one in instructions if one.kind in ("backward", "backward_weight"))
        self.ends = {
            one.segment: i for i, one in enumerate(instructions) if one.kind in ("backward", "backward_weight")
        }
        self.recomputed = {(one.segment, one.microbatch) for one in instructions if one.kind == "recompute"}
        self.gathering: dict[int, tuple[int, int]] = {}
        self.early: dict[int, int] = {}
        self.away: dict[tuple[int | None, int | None], tuple[int, int]] = {}
        self.reducing: tuple[int, int] | None = None
        self.left: set[int] = set()
        self.unread: set[int] = set()
        self.summing: set[int] = set()
        self.known: dict[object, list[Action]] = {}
        apart = spans or stage in costs.cores or any(one.kind in (*AWAY, *NESTED) for one in instructions)
        self.steady = set[int]() if apart else {s for s in self.made_by if s is not None and self._is_steady(s, counts)}
        own = [segment for segment, at in messages.stage_of.items() if at == stage]
        self.step_s = sum(costs.segments[segment].step_s for segment in own)
        self.hosted = [segment for segment in own if costs.segments[segment].state_bytes]
        made.host_s[stage] = sum(costs.segments[segment].step_host_s for segment in own)

    def _is_steady(self, segment: int, counts: Counter[tuple[str, int | None]]) -> bool:
        """Whether its runs in different micro-batches differ in their messages alone, the first and last one aside."""
        again = counts["recompute", segment]
        return self.gathers.get(segment, 0) <= 1 and again in (0, self.made_by[segment])

    def compile(self) -> list[Action]:
        found: list[Action] = []
        waiting = self.messages.waits[self.stage]
        for index, one in enumerate(self.instructions):
            waits = waiting.get(index, ())
            if one.segment in self.steady and one.kind in PER_MICROBATCH:
                found += self._repeated(one, index, waits)
            elif one.kind in SENDS or one.kind in RECEIVES:
                found += self._transfer(one, index, self.messages.own[self.stage][index], waits)
            elif one.kind == "step":
                found += self._step(index)
            elif one.kind in ("gather", "reduce"):
                found += self._collective(one, index)
            elif one.kind in AWAY:
                found += self._copied(one, index)
            elif one.kind not in ("free", "drop"):
                found += self._compute(one, index, waits)
        cores = self.costs.cores.get(self.stage, ())
        return [part for action in found for part in self._shared(action, cores)] if cores else found

    def _step(self, index: int) -> list[Action]:
        """The optimizer. What is on the host comes group by group: while one is updated the next one comes and the one
        before goes back. The step is over when all of it is there again."""
        found = [Action(COMPUTE, index, 0.0 if self.hosted else self.step_s, jobs=_some(self.reducing))]
        fetching = self._state("fetch", self.hosted[0], index, found) if self.hosted else None
        found += [Action(COMPUTE, index, self.step_s)] if self.hosted and self.step_s else []
        putting: tuple[int, int] | None = None
        for place, segment in enumerate(self.hosted):
            following = self.hosted[place + 1 : place + 2]
            coming = self._state("fetch", following[0], index, found) if following else None
            found.append(Action(COMPUTE, index, self.costs.segments[segment].hosted_step_s, jobs=_some(fetching)))
            if putting is not None:
                found.append(Action(COMPUTE, index, jobs=(putting,)))
            putting, fetching = self._state("offload", segment, index, found), coming
        return [*found, Action(COMPUTE, index, jobs=_some(putting))] if putting else found

    def _state(self, kind: str, segment: int, index: int, found: list[Action]) -> tuple[int, int]:
        """Begin to copy the optimizer state of a segment's parameters, from the host or back."""
        cost, away = self.costs.segments[segment], kind == "offload"
        job = self._job(AWAY_LANE if away else BACK_LANE, kind, Instruction(kind, segment))
        size, seconds = cost.state_bytes, cost.put_state_s if away else cost.fetch_state_s
        takes, late = (-size, size) if away else (size, 0)
        found.append(Action(LANE, index, takes=takes, job=job, lane_s=seconds, late=late))
        return job

    def _shared(self, action: Action, cores: tuple[str, ...]) -> tuple[Action, ...]:
        """Compute on a shared core is begun and waited for."""
        if action.kind != COMPUTE or not action.seconds:
            return (action,)
        one = self.instructions[action.index]
        message = self.made.add(action.seconds, 0.0, cores, 1, -1, 0, self.stage)
        self.made.names.append(("compute", -1 if one.segment is None else one.segment, one.microbatch))
        self.made.lanes.append((self.stage, self.stage))
        self.made.computes.add(message)
        takes = action.takes + action.works
        begin = replace(action, kind=POST, seconds=0.0, message=message, takes=takes, job=None, lane_s=0.0)
        return begin, replace(action, seconds=0.0, waits=(message,), jobs=(), takes=-action.works, wire_s=0.0)

    def _transfer(self, one: Instruction, index: int, message: int, waits: tuple[int, ...]) -> list[Action]:
        transfer = self._priced(message)
        if one.kind in RECEIVES:
            self.unread.add(message)
            return [Action(POST, index, message=message, takes=transfer.received_bytes)]
        found = [Action(POST, index, 0.0, waits, message, takes=transfer.sent_bytes)]
        if self.costs.buffers is not None:
            oldest = message
            for _ in range(self.costs.buffers):
                oldest = self.messages.before[oldest] if oldest >= 0 else -1
            if oldest >= 0:
                found.append(Action(BLOCKING, index, 0.0, (oldest,)))
        return found

    def _job(self, lane: int, kind: str, one: Instruction) -> tuple[int, int]:
        assert one.segment is not None
        job = (lane, len(self.made.jobs[self.stage]))
        self.made.jobs[self.stage][job] = (kind, one.segment, one.microbatch)
        return job

    def _collective(self, one: Instruction, index: int) -> list[Action]:
        """Its part that overlaps compute is begun, the rest waited for. Gradients that left while backward ran are on
        their way."""
        segment = one.segment
        assert segment is not None
        cost = self.costs.segments[segment]
        if one.kind == "gather":
            self.early[segment] = cost.prefetched_param_bytes
            times = self.gathers[segment]
            return self._hidden(
                one, index, cost.gather_params_s / times, takes=cost.prefetched_param_bytes, link_s=cost.link_s / times
            )
        seconds = (cost.reduce_grads_s - cost.reduce_per_microbatch_s) / self.reduces[segment]
        return self._hidden(one, index, seconds, late=cost.pending_grad_bytes, left=segment in self.left)

    def _hidden(
        self,
        one: Instruction,
        index: int,
        seconds: float,
        takes: int = 0,
        late: int = 0,
        left: bool = False,
        link_s: float = 0.0,
    ) -> list[Action]:
        assert one.segment is not None
        lane_s = self._lane_s(one.kind, self.costs.segments[one.segment], seconds)
        found = []
        if lane_s and not left:
            job = self._job(COLLECTIVES, one.kind, one)
            if one.kind == "gather":
                self.gathering[one.segment] = job
            else:
                self.reducing = job
            found.append(
                Action(LANE, index, takes=takes, job=job, lane_s=lane_s, late=late, link_s=min(link_s, lane_s))
            )
        elif takes:
            found.append(Action(LANE, index, takes=takes))
        return [*found, Action(BLOCKING, index, seconds - lane_s)] if seconds > lane_s else found

    def _lane_s(self, kind: str, cost: SegmentCost, seconds: float) -> float:
        return cost.overlapped_share(kind) * seconds if self.costs.overlap else 0.0

    def _copied(self, one: Instruction, index: int) -> list[Action]:
        """To the host and back: what leaves is let go of once its copy is done."""
        assert one.segment is not None
        cost, key = self.costs.at(one.microbatch == self.last).segments[one.segment], (one.segment, one.microbatch)
        if one.kind == "release":
            return [Action(COMPUTE, index, jobs=(self.away[key],), gives=cost.offloaded_bytes)]
        self.away[key] = self._job(AWAY_LANE if one.kind == "offload" else BACK_LANE, one.kind, one)
        takes = cost.offloaded_bytes if one.kind == "fetch" else 0
        return [Action(LANE, index, takes=takes, job=self.away[key], lane_s=cost.away_s)]

    def _repeated(self, one: Instruction, index: int, waits: tuple[int, ...]) -> list[Action]:
        """`_compute` of a steady segment: where nothing is waited for, what another micro-batch has done already."""
        segment = one.segment
        assert segment is not None
        last = one.microbatch == self.last
        if waits or index == self.ends[segment]:
            return self._compute(one, index, waits)
        key = one.kind, segment, last, self.gathering.get(segment)
        if key in self.known:
            self._launch(one, self.costs.at(last).segments[segment])
            return self.known[key]
        backward = one.kind in BACKWARDS
        differs = segment in self.early or (backward and segment not in self.summing)
        made = self._compute(one, index, waits)
        if not differs and not (backward and self.costs.segments[segment].reduce_per_microbatch_s):
            self.known[key] = made
        return made

    def _launch(self, one: Instruction, cost: SegmentCost) -> None:
        """What the host takes to launch a run."""
        if one.kind in ("forward", "pass"):
            self.made.host_s[self.stage] += cost.forward_host_s
        elif one.kind == "recompute":
            self.made.host_s[self.stage] += cost.recompute_host_s
        elif one.kind != "backward_weight":
            self.made.host_s[self.stage] += cost.backward_host_s

    def _compute(self, one: Instruction, index: int, waits: tuple[int, ...]) -> list[Action]:
        assert one.segment is not None
        cost = self.costs.at(one.microbatch == self.last).segments[one.segment]
        self._launch(one, cost)
        jobs = (self.gathering[one.segment],) if one.segment in self.gathering else ()
        arrived, takes = self._arrived(waits), -self.early.pop(one.segment, 0)
        if one.kind in ("forward", "pass"):
            takes += cost.resident_bytes + cost.offloaded_bytes - arrived if one.kind == "forward" else 0
            works, moving = cost.forward_transient_bytes, _share(cost.forward_comm_s, cost.forward_s)
            wire_s = min(cost.forward_wire_s, cost.forward_s)
            return [Action(COMPUTE, index, cost.forward_s, waits, -1, takes, works, 0, moving, wire_s, jobs)]
        if one.kind == "recompute":
            works = cost.backward_transient_bytes - cost.restored
            return [Action(COMPUTE, index, cost.recompute_s, waits, -1, takes + cost.restored, works, jobs=jobs)]
        if (one.segment, one.microbatch) in self.away:
            jobs = (*jobs, self.away.pop((one.segment, one.microbatch)))
        return self._backward(one, index, cost, (waits, jobs), takes, arrived)

    def _backward(
        self,
        one: Instruction,
        index: int,
        cost: SegmentCost,
        after: tuple[tuple[int, ...], tuple[tuple[int, int], ...]],
        takes: int,
        arrived: int,
    ) -> list[Action]:
        """after: what it waits for."""
        again, whole = (one.segment, one.microbatch) in self.recomputed, one.kind == "backward"
        works = cost.backward_transient_bytes - (cost.restored if again else 0)
        if whole and not again and one.segment in self.summing:
            works -= cost.added_bytes
        held = cost.resident_bytes + cost.offloaded_bytes + (cost.restored if again else 0)
        rest = held if cost.rest_bytes is None else cost.rest_bytes
        gives = arrived + {"backward": held, "backward_input": held - rest, "backward_weight": rest}[one.kind]
        if one.kind != "backward_input" and one.segment not in self.summing:
            assert one.segment is not None
            self.summing.add(one.segment)
            gives -= cost.gradient_bytes  # while it lasts they are among its transients
        seconds, moving, wire_s = _backward_s(one.kind, cost), 0.0, 0.0
        if one.kind != "backward_weight":
            moving, wire_s = _share(cost.backward_comm_s, seconds), min(cost.backward_wire_s, seconds)
        made = Action(COMPUTE, index, seconds, after[0], -1, takes, works, gives, moving, wire_s, after[1])
        if one.kind == "backward_input" or not cost.reduce_grads_s:
            return [made]
        return self._leaving(one, made, whole and not again)

    def _leaving(self, one: Instruction, made: Action, apart: bool) -> list[Action]:
        """With its gradients on the lane: those of every micro-batch, and the others where this is their last. They
        leave in parts where backward comes apart and leaves the lane's links alone."""
        segment = one.segment
        assert segment is not None
        cost = self.costs.segments[segment]
        reduce_per_microbatch_s = cost.reduce_per_microbatch_s / self.made_by[segment]
        lane_s = self._lane_s("reduce", cost, reduce_per_microbatch_s)
        blocks = (
            [Action(BLOCKING, made.index, reduce_per_microbatch_s - lane_s)] if reduce_per_microbatch_s > lane_s else []
        )
        apart &= cost.grad_buckets > 1 and made.seconds > 0 and not made.wire_s
        if apart and self.ends[segment] == made.index and self.reduces.get(segment) == 1:
            lane_s += self._lane_s("reduce", cost, cost.reduce_grads_s - cost.reduce_per_microbatch_s)
            self.left.add(segment)
        if not lane_s:
            return [made, *blocks]
        self.reducing = job = self._job(COLLECTIVES, "reduce", one)
        parts = cost.grad_buckets if apart else 1
        return [replace(made, job=job, lane_s=lane_s, parts=parts, late=cost.pending_grad_bytes), *blocks]

    def _arrived(self, waits: tuple[int, ...]) -> int:
        """Bytes of the messages that are read here for the first time: their buffers go."""
        found = 0
        for message in waits:
            if message in self.unread:
                self.unread.discard(message)
                found += self._priced(message).received_bytes
        return found

    def _priced(self, message: int) -> Transfer:
        _, segment, microbatch, source, target = self.messages.keys[message]
        return self.costs.at(microbatch == self.last).transfers.get((segment, source, target), FREE)


def _some(job: tuple[int, int] | None) -> tuple[tuple[int, int], ...]:
    return () if job is None else (job,)


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, part_s / whole_s) if part_s else 0.0


def _backward_s(kind: str, cost: SegmentCost) -> float:
    assert kind in BACKWARDS
    gather_params_s = cost.backward_input_s if kind != "backward_weight" else 0.0
    return gather_params_s + (cost.backward_weight_s if kind != "backward_input" else 0.0)
