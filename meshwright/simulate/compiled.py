"""Instruction lists and costs become numbers: what each instruction lasts, waits for, takes and gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshwright.plan import Instruction
from meshwright.plan.instruction import AWAY, BACKWARDS, RECEIVES, SENDS
from meshwright.schedule.messages import Messages
from meshwright.simulate.costs import FREE, Costs, SegmentCost, Transfer

COMPUTE, BLOCKING, POST = range(3)


@dataclass(frozen=True, slots=True)
class Action:
    """kind: COMPUTE; BLOCKING, for communication that compute waits for; POST, which begins a message.

    index: of the instruction it comes from. takes: bytes from its begin on; works: bytes while it lasts; gives: bytes
    back at its end. moving: of its seconds, the share in which compute waits for a collective.
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


@dataclass(slots=True)
class Compiled:
    """Messages are the transfers, then the gathers and reductions that run beside compute: `ends` is how many sides
    have to begin one, `owner` whose buffer its end gives back, `names` and `lanes` are for a reader. What computes on a
    shared core is one too, over that core: `computes`."""

    actions: list[list[Action]]
    static_bytes: list[int]
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


def compile_lists(lists: Sequence[Sequence[Instruction]], costs: Costs, messages: Messages) -> Compiled:
    made = Compiled([], [0] * len(lists))
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
        made.actions.append(_Stage(stage, instructions, costs, messages, made, last).compile())
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
    ) -> None:
        self.stage, self.instructions, self.costs, self.messages, self.made = stage, instructions, costs, messages, made
        self.last = last
        counts = Counter((one.kind, one.segment) for one in instructions)
        self.gathers = {segment: n for (kind, segment), n in counts.items() if kind == "gather"}
        self.reduces = {segment: n for (kind, segment), n in counts.items() if kind == "reduce"}
        self.recomputed = {(one.segment, one.microbatch) for one in instructions if one.kind == "recompute"}
        self.gathering: dict[int, int] = {}
        self.collective = -1
        self.reducing = -1
        self.unread: set[int] = set()
        self.summing: set[int] = set()
        own = [segment for segment, at in messages.stage_of.items() if at == stage]
        self.step_s = sum(costs.segments[segment].step_s for segment in own)

    def compile(self) -> list[Action]:
        found: list[Action] = []
        for index, one in enumerate(self.instructions):
            waits = self.messages.waits[self.stage].get(index, ())
            if one.kind in SENDS or one.kind in RECEIVES:
                found += self._transfer(one, index, self.messages.own[self.stage][index], waits)
            elif one.kind == "step":
                found.append(Action(COMPUTE, index, self.step_s, (self.reducing,) if self.reducing >= 0 else ()))
            elif one.kind in ("gather", "reduce"):
                found += self._collective(one, index)
            elif one.kind not in ("free", "drop", *AWAY):
                found.append(self._compute(one, index, waits))
        cores = self.costs.cores.get(self.stage, ())
        return [part for action in found for part in self._shared(action, cores)] if cores else found

    def _shared(self, action: Action, cores: tuple[str, ...]) -> tuple[Action, ...]:
        """Compute on a shared core is begun and waited for."""
        if action.kind != COMPUTE or not action.seconds:
            return (action,)
        one = self.instructions[action.index]
        message = self.made.add(action.seconds, 0.0, cores, 1, -1, 0, self.stage)
        self.made.names.append(("compute", -1 if one.segment is None else one.segment, one.microbatch))
        self.made.lanes.append((self.stage, self.stage))
        self.made.computes.add(message)
        begin = replace(action, kind=POST, seconds=0.0, message=message, takes=action.takes + action.works)
        return begin, replace(action, seconds=0.0, waits=(message,), takes=-action.works)

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

    def _collective(self, one: Instruction, index: int) -> list[Action]:
        assert one.segment is not None
        cost = self.costs.segments[one.segment]
        if one.kind == "gather":
            seconds = cost.first_s / self.gathers[one.segment]
        else:
            seconds = cost.last_s / self.reduces[one.segment]
        beside = cost.beside(one.kind) * seconds if self.costs.overlap else 0.0
        found = [Action(BLOCKING, index, seconds - beside)]
        if beside:
            links = self.costs.links.get(self.stage, ())
            late = cost.late_bytes if one.kind == "reduce" else 0
            message = self.made.add(beside, 0.0, links, 1, self.collective, late, self.stage)
            self.made.names.append((one.kind, one.segment, None))
            self.made.lanes.append((self.stage, self.stage))
            self.collective = message
            if one.kind == "gather":
                self.gathering[one.segment] = message
            else:
                self.reducing = message
            found.append(Action(POST, index, message=message, takes=late))
        return found

    def _compute(self, one: Instruction, index: int, waits: tuple[int, ...]) -> Action:
        assert one.segment is not None
        cost = self.costs.at(one.microbatch == self.last).segments[one.segment]
        again = (one.segment, one.microbatch) in self.recomputed
        if one.segment in self.gathering:
            waits = (*waits, self.gathering[one.segment])
        arrived = self._arrived(waits)
        if one.kind in ("forward", "pass"):
            takes = cost.resident_bytes - arrived if one.kind == "forward" else 0
            works, moving = cost.forward_transient_bytes, _share(cost.forward_wire_s, cost.forward_s)
            return Action(COMPUTE, index, cost.forward_s, waits, takes=takes, works=works, moving=moving)
        if one.kind == "recompute":
            works = cost.backward_transient_bytes - cost.restored
            return Action(COMPUTE, index, cost.recompute_s, waits, takes=cost.restored, works=works)
        works = cost.backward_transient_bytes - (cost.restored if again else 0)
        if one.kind == "backward" and not again and one.segment in self.summing:
            works -= cost.added_bytes
        held = cost.resident_bytes + (cost.restored if again else 0)
        rest = held if cost.rest_bytes is None else cost.rest_bytes
        gives = arrived + {"backward": held, "backward_input": held - rest, "backward_weight": rest}[one.kind]
        if one.kind != "backward_input" and one.segment not in self.summing:
            self.summing.add(one.segment)
            gives -= cost.gradient_bytes  # while it lasts they are among its transients
        seconds = _backward_s(one.kind, cost)
        moving = _share(cost.backward_wire_s / (1 if one.kind == "backward" else 2), seconds)
        return Action(COMPUTE, index, seconds, waits, works=works, gives=gives, moving=moving)

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


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, part_s / whole_s) if part_s else 0.0


def _backward_s(kind: str, cost: SegmentCost) -> float:
    assert kind in BACKWARDS
    first_s = cost.backward_input_s if kind != "backward_weight" else 0.0
    return first_s + (cost.backward_weight_s if kind != "backward_input" else 0.0)
