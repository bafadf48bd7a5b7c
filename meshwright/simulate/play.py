"""The simulator: plays the lists of all stages with predicted durations. Ranks of a stage do the same and count once.

A stage's compute stream takes its instructions in order; a receive or send only begins a message, and what reads it
waits. Stages that share a core compute at a speed that falls with their number. A message is on the wire once both its
ends have begun it and the one before it on its channel is over; latency first, then its bytes, at a speed that falls
with the number of messages on its links. A stage that need not wait runs on by itself; only messages that share links
are taken in order of time. So a step costs what its instructions and messages number, whatever the number of ranks.

A stage has compute and lanes (`lane`): gathers and reductions, copies to the host, copies back. Its host runs ahead
of its device; over many steps a step takes the longer of what the two need.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import nan

import numpy as np

from meshwright.errors import VerifyError
from meshwright.plan import Instruction
from meshwright.schedule.messages import Messages, read_messages
from meshwright.schedule.pipeline import Reads
from meshwright.simulate.compiled import BACK_LANE, COLLECTIVES, COMPUTE, LANE, POST, Compiled, compile_lists
from meshwright.simulate.costs import Costs
from meshwright.simulate.lane import Event, Lane, Wires
from meshwright.simulate.timeline import Message, Spans, StageTimes, Timeline

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

ROUNDING = 1e-12
"""Of a step: idleness below this is that of adding seconds in another order."""


def simulate(
    lists: Sequence[Sequence[Instruction]],
    costs: Costs,
    *,
    reads: Reads | None = None,
    spans: bool = True,
    messages: Messages | None = None,
) -> Timeline:
    """Time, idleness and memory of one step. `spans`: keep what ran when, for a trace; a search needs none.
    `messages`: of these lists, where they are known already."""
    found = read_messages(lists, reads) if messages is None else messages
    costs.check(len(lists), len(found.stage_of))
    compiled = compile_lists(lists, costs, found, spans)
    player = _Player(compiled, spans)
    player.run(lists)
    device_s = max(player.clock)
    step_s = max(device_s, *compiled.host_s)
    stages = tuple(player.times(stage, device_s, step_s) for stage in range(len(lists)))
    ranks = tuple(costs.ranks) if costs.ranks is not None else (1,) * len(lists)
    return Timeline(step_s, stages, ranks, tuple(map(tuple, lists)), player.kept() if spans else None)


class _Player:
    def __init__(self, compiled: Compiled, spans: bool) -> None:
        self.compiled, self.spans = compiled, spans
        count, stages = len(compiled.seconds), len(compiled.actions)
        self.after = [-1] * count
        for message, before in enumerate(compiled.before):
            if before >= 0:
                self.after[before] = message
        self.begun = [0] * count
        self.ready = [0.0] * count
        self.began = [nan] * count
        self.over = [nan] * count
        self.asleep: dict[int, list[int]] = {}
        self.lanes = [(Lane(), Lane(), Lane()) for _ in range(stages)]
        self.heap: list[Event] = []
        self.wires = Wires(compiled.links, compiled.seconds, self.heap)
        self.awake = list(range(stages))
        self.place = [0] * stages
        self.clock = [0.0] * stages
        self.busy = [0.0] * stages
        self.exposed = [0.0] * stages
        self.ran: list[tuple[int, int, float, float]] = []
        self.memory: list[list[tuple[float, int]]] = [[] for _ in range(stages)]
        self.returned: list[list[tuple[float, int]]] = [[] for _ in range(stages)]

    def run(self, lists: Sequence[Sequence[Instruction]]) -> None:
        while True:
            while self.awake:
                self._advance(self.awake.pop())
            if not self.heap:
                break
            now_s, kind, message, forecast = heappop(self.heap)
            if kind == 0:
                self.wires.begin(message, now_s)
            elif self.wires.current(message, forecast):
                self.wires.end(message, now_s)
                self._finish(message, now_s)
        stuck = [s for s, place in enumerate(self.place) if place < len(self.compiled.actions[s])]
        if stuck:
            raise VerifyError(f"stages {stuck} wait for ever", "lists that `verify_lists` passes with these buffers")

    def _advance(self, stage: int) -> None:
        actions, memory, lanes = self.compiled.actions[stage], self.memory[stage], self.lanes[stage]
        now_s = self.clock[stage]
        for place in range(self.place[stage], len(actions)):
            action = actions[place]
            for message in action.waits:
                over_s = self.over[message]
                if over_s != over_s:  # not over yet
                    self.asleep.setdefault(message, []).append(stage)
                    self.place[stage], self.clock[stage] = place, now_s
                    return
                if over_s > now_s:
                    waited_s = over_s - max(now_s, self.began[message])
                    if message in self.compiled.computes:
                        self._computed(stage, waited_s, action.moving)
                        if self.spans:
                            self.ran.append((stage, action.index, self.began[message], over_s))
                    else:
                        self.exposed[stage] += waited_s
                    now_s = over_s
            for lane, job in action.jobs:
                over_s = lanes[lane].over[job]
                if over_s > now_s:
                    self.exposed[stage] += over_s - now_s
                    now_s = over_s
            if action.kind == LANE:
                if action.takes:
                    memory.append((now_s, action.takes))
                if action.job is not None:
                    if action.late:
                        memory.append((now_s, action.late))
                    own, begin_s = lanes[action.job[0]], now_s
                    if action.link_s:
                        begin_s = lanes[BACK_LANE].taken(max(now_s, own.free_s), action.link_s)
                    own.begin(action.job[1], begin_s, action.lane_s, action.late)
                continue
            if action.kind == POST:
                if action.takes:
                    memory.append((now_s, action.takes))
                self._begin(action.message, now_s)
                continue
            end_s = now_s + action.seconds
            if action.wire_s:
                lanes[COLLECTIVES].rest(now_s, action.seconds, action.wire_s)
            if action.job is not None:
                number, late = action.job[1], action.late
                lanes[COLLECTIVES].leave(number, now_s, end_s, action.lane_s, action.parts, late)
                if late:
                    memory.append((end_s, late))
            if action.kind == COMPUTE:
                self._computed(stage, action.seconds, action.moving)
                memory.append((now_s, action.takes + action.works))
                memory.append((end_s, -action.works - action.gives))
            else:
                self.exposed[stage] += action.seconds
            if self.spans and action.seconds:
                self.ran.append((stage, action.index, now_s, end_s))
            now_s = end_s
        self.place[stage], self.clock[stage] = len(actions), now_s

    def _computed(self, stage: int, seconds: float, moving: float) -> None:
        self.busy[stage] += seconds * (1.0 - moving)
        self.exposed[stage] += seconds * moving

    def _begin(self, message: int, now_s: float) -> None:
        self.begun[message] += 1
        self.ready[message] = max(self.ready[message], now_s)
        self._start(message)

    def _start(self, message: int) -> None:
        """Put a message on the wire if both ends have begun it and the one before it is over."""
        if self.begun[message] < self.compiled.ends[message]:
            return
        before = self.compiled.before[message]
        if before >= 0:
            if self.over[before] != self.over[before]:
                return
            self.ready[message] = max(self.ready[message], self.over[before])
        start_s = self.began[message] = self.ready[message]
        start_s += self.compiled.latency_s[message]
        if self.compiled.links[message]:
            heappush(self.heap, (start_s, 0, message, 0))
        else:
            self._finish(message, start_s + self.compiled.seconds[message])

    def _finish(self, message: int, now_s: float) -> None:
        self.over[message] = now_s
        if self.compiled.sent_bytes[message]:
            self.returned[self.compiled.owner[message]].append((now_s, -self.compiled.sent_bytes[message]))
        self.awake += self.asleep.pop(message, [])
        if self.after[message] >= 0:
            self._start(self.after[message])

    def times(self, stage: int, device_s: float, step_s: float) -> StageTimes:
        peak_bytes, peak_s = self._peak(stage)
        idle_s = device_s - self.busy[stage] - self.exposed[stage]
        return StageTimes(
            end_s=self.clock[stage],
            busy_s=self.busy[stage],
            exposed_s=self.exposed[stage],
            bubble_s=idle_s if idle_s > ROUNDING * step_s else 0.0,
            static_bytes=self.compiled.static_bytes[stage],
            peak_bytes=peak_bytes,
            peak_s=peak_s,
            host_s=step_s - device_s,
            launch_s=self.compiled.host_s[stage],
        )

    def _peak(self, stage: int) -> tuple[int, float]:
        times, held = self._curve(stage)
        at = int(np.argmax(held))
        return int(held[at]), float(times[at])

    def _curve(self, stage: int) -> tuple[Floats, Ints]:
        """Bytes held after each change. A buffer that a message gives back is free before what begins then."""
        returned = [*self.returned[stage], *(one for lane in self.lanes[stage] for one in lane.returned())]
        changes = [(0.0, self.compiled.static_bytes[stage]), *returned, *self.memory[stage]]
        when, sizes_then = zip(*changes, strict=True)
        times = np.array(when)
        order = np.argsort(times, kind="stable")
        sizes = np.array(sizes_then, dtype=np.int64)[order]
        return times[order], np.cumsum(sizes)

    def kept(self) -> Spans:
        made = self.compiled
        messages = tuple(
            Message(*made.names[number], *made.lanes[number], self.began[number], self.over[number])
            for number in range(len(made.names))
            if number not in made.computes
        )
        for stage, (names, lanes) in enumerate(zip(made.jobs, self.lanes, strict=True)):
            messages += tuple(
                Message(*name, stage, stage, lanes[lane].began[job], lanes[lane].over[job])
                for (lane, job), name in names.items()
            )
        curves = [self._curve(stage) for stage in range(len(made.actions))]
        memory = tuple(tuple(zip(times.tolist(), held.tolist(), strict=True)) for times, held in curves)
        return Spans(tuple(self.ran), messages, memory)
