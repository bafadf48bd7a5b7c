"""A rank's traffic with other stages: begun where the list says so, waited for where it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.capture.program import Program
from meshwright.errors import RunError
from meshwright.layout.crossrun import Channel, Handover
from meshwright.layout.record import note
from meshwright.layout.transport import use_transport
from meshwright.plan import Instruction, Plan
from meshwright.plan.units import show_spans
from meshwright.predict.stage_traffic import ALL
from meshwright.runtime.step.microbatch import MicroBatch
from meshwright.runtime.step.parts import Part
from meshwright.runtime.step.tied_replicas import HOME, OUT, TiedReplicas
from meshwright.schedule.edges import Edge, Edges
from meshwright.schedule.of_plan import plan_pipeline

INNER = 7
"""The channel of what goes between stages that the same ranks run; 1 to 4 are values and gradients, up and down."""


class Exchange:
    """`transfer` begins a send or a receive; `value` and `gradient` wait for what has been begun."""

    def __init__(self, plan: Plan, program: Program, parts: Sequence[Part], device: torch.device) -> None:
        self.plan, self.program, self.device = plan, program, device
        self.parts = {part.stage.first: part for part in parts}
        self.rank = dist.get_rank()
        self.stage = plan.stage_at(self.rank) if len(plan.stages) > 1 else 0
        self.pipeline = plan_pipeline(plan, program)
        self.edges = [Edges(part, program, self.pipeline, self.stage) for part, _ in plan.cut]
        self.uses: Counter[str] = self.edges[0].uses
        self.recomputed = self.pipeline.recomputed if len(plan.stages) > 1 else frozenset[int]()
        self.channels = _channels(plan, device)
        self.tied_replicas = TiedReplicas(plan, program, parts, device, self.channels)
        self.arriving: dict[tuple[str, int], Handover] = {}
        self.returning: dict[tuple[str, int], list[tuple[Edge, Handover]]] = {}
        self.sent: list[Handover] = []
        self.shapes = [{name: edges.value(name).type.sizes for name in self.uses} for edges in self.edges]

    def told(self, instruction: Instruction) -> str:
        return str(instruction) if len(self.plan.stages) == 1 else f"stage {self.stage}: {instruction}"

    def failure(self, instruction: Instruction, error: Exception) -> RunError:
        runs = show_spans(*((part.stage.first, part.stage.end) for part in self.parts.values()))
        return RunError(
            f"stage {self.stage} ({runs}) failed on rank {self.rank} at `{instruction}`: "
            f"{type(error).__name__}: {error}",
            "a step that runs",
        )

    def _size(self, micro: MicroBatch) -> int:
        """Which edges are a micro-batch's: the last may be smaller."""
        return len(self.edges) - 1 if micro.number == self.plan.microbatches - 1 else 0

    def transfer(self, one: Instruction, micro: MicroBatch) -> None:
        assert one.segment is not None
        assert one.peer is not None
        out = one.kind.startswith("send")
        forward = not one.kind.endswith("gradient")
        ends = (self.stage, one.peer) if out == forward else (one.peer, self.stage)
        channel = self.channels[1 + 2 * (not forward) + ((self.stage > one.peer) == out)]
        self.sent = [handover for handover in self.sent if not handover.done()]
        for edge in self.edges[self._size(micro)].messages[one.segment, *ends]:
            if forward:
                self._value_message(edge, micro, channel, out)
            elif edge.value.grad:
                self._gradient_message(edge, micro, channel, out)

    def _value_message(self, edge: Edge, micro: MicroBatch, channel: Channel, out: bool) -> None:
        if not out:
            self.arriving[edge.name, micro.number] = Handover(edge.there, None, edge.dtype, self.device, channel)
            return
        local = self._held(edge.name, edge.source.stage.first, micro)
        self.sent.append(Handover(edge.there, local, edge.dtype, self.device, channel))
        self.used(edge.name, micro)

    def _gradient_message(self, edge: Edge, micro: MicroBatch, channel: Channel, out: bool) -> None:
        if not out:
            handover = Handover(edge.back, None, edge.dtype, self.device, channel)
            self.returning.setdefault((edge.name, micro.number), []).append((edge, handover))
            return
        local = self._whole_gradient(edge.name, edge, micro)
        self.sent.append(Handover(edge.back, local, edge.dtype, self.device, channel))

    def value(self, name: str, part: Part, micro: MicroBatch) -> Tensor:
        """A boundary value in the layout in which a stage reads it."""
        first = part.stage.first
        if (name, first) in micro.values:
            return micro.values[name, first]
        edge = self.edges[self._size(micro)].local.get((name, first))
        source = self._held(name, first if edge is None else edge.source.stage.first, micro)
        if edge is None or edge.alike:
            return source
        made = Handover(edge.there, source, edge.dtype, self.device, self.channels[INNER]).wait()
        assert made is not None
        micro.values[name, first] = made
        return made

    def _held(self, name: str, first: int, micro: MicroBatch) -> Tensor:
        """As this rank first held it, once it has come."""
        handover = self.arriving.pop((name, micro.number), None)
        if handover is not None:
            found = handover.wait()
            assert found is not None
            micro.values[name, first] = found
        return micro.values[name, first]

    def used(self, name: str, micro: MicroBatch) -> None:
        """A value goes when everybody here has read it or it has been sent to all."""
        micro.uses[name] -= 1
        if micro.uses[name] == 0:
            for key in [key for key in micro.values if key[0] == name]:
                del micro.values[key]

    def gradient(self, name: str, part: Part, micro: MicroBatch) -> Tensor:
        """Of a value that a stage made: what all its readers, here and elsewhere, have to say."""
        found = micro.gradients.pop((name, part.stage.first), None)
        total = self._others(name, micro)
        if total is not None:
            size = self._size(micro)
            total = self.edges[size].form(name, self.stage).spread(total, self.shapes[size][name])
            found = total if found is None else found + total
        if found is None:
            raise RunError(f"no gradient of {name}", "one from a layer that reads it")
        return found

    def _whole_gradient(self, name: str, edge: Edge, micro: MicroBatch) -> Tensor:
        """Of a value that came from elsewhere, with nothing left to reduce; zeros where no reader reaches it."""
        first = edge.target.stage.first
        found = micro.gradients.pop((name, first), None)
        if found is not None:
            with use_transport(self.parts[first].transport):
                found = edge.target.reduced(found, edge.shape)
        total = self._others(name, micro)
        if total is not None:
            found = total if found is None else found + total
        if found is None:
            box = edge.back.sources[self.rank]
            found = torch.zeros([b - a for a, b in box], dtype=edge.dtype, device=self.device)
        return found

    def _others(self, name: str, micro: MicroBatch) -> Tensor | None:
        """What came back from other stages, and from this rank's other ones, whole, in the pieces of the form here."""
        found: Tensor | None = None
        for _, handover in self.returning.pop((name, micro.number), []):
            came = handover.wait()
            assert came is not None
            found = came if found is None else found + came
        for (other, first), edge in self.edges[self._size(micro)].local.items():
            own = micro.gradients.pop((name, first), None) if other == name else None
            if own is None:
                continue
            with use_transport(self.parts[first].transport):
                own = edge.target.reduced(own, edge.shape)
            if not edge.alike:
                came = Handover(edge.back, own, edge.dtype, self.device, self.channels[INNER]).wait()
                assert came is not None
                own = came
            found = own if found is None else found + own
        return found

    def finish(self) -> None:
        """All that was sent has left."""
        for handover in self.sent:
            handover.wait()
        self.sent = []

    def bytes_under_way(self) -> int:
        pending = [*self.arriving.values(), *(h for some in self.returning.values() for _, h in some), *self.sent]
        return sum(handover.bytes for handover in pending)

    def share_loss(self, loss: Tensor | None) -> Tensor:
        """The last stage's, on every rank."""
        if len(self.plan.stages) == 1:
            assert loss is not None
            return loss
        value = self.program.segments[-1]
        kind = self.program.graph(value).at(self.plan.microbatch).values()[self.program.graph(value).outputs[0]].type
        held = torch.zeros((), dtype=getattr(torch, kind.dtype), device=self.device) if loss is None else loss.clone()
        note("broadcast", ALL, held)
        dist.broadcast(held, self.plan.stages[-1].mesh.ranks[0])
        return held

    def share_numbers(self, found: list[float] | None, count: int) -> list[float]:
        """What the last stage's ranks know, on every rank."""
        if len(self.plan.stages) == 1:
            assert found is not None
            return found
        held = torch.tensor(found or [0.0] * count, dtype=torch.float64, device=self.device)
        note("broadcast", ALL, held)
        dist.broadcast(held, self.plan.stages[-1].mesh.ranks[0])
        return [float(number) for number in held.tolist()]


_ways: WeakKeyDictionary[dist.ProcessGroup, tuple[dist.ProcessGroup, dist.ProcessGroup]] = WeakKeyDictionary()
"""Of a world, the groups of what goes to higher ranks and of what goes to lower ones."""


def _channels(plan: Plan, device: torch.device) -> dict[int, Channel]:
    """Over groups with tags, one for each way: with one for both, values that go up would wait for gradients that come
    down. Where the backend knows no tags, over a group each. What stays among the same ranks is waited for at once."""
    numbers = (1, 2, 3, 4, OUT, HOME, INNER)
    if len(plan.stages) == 1:
        return {number: Channel(number) for number in numbers}
    if device.type != "cpu":
        return {number: Channel(number, dist.new_group()) for number in numbers}
    world = dist.group.WORLD
    assert world is not None
    if world not in _ways:
        _ways[world] = (dist.new_group(), dist.new_group())
    return {number: Channel(number, *_ways[world], threaded=number != INNER) for number in numbers}
