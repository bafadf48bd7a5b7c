"""What travels between the stages of a plan: which values, in which layouts, by which routes. Read once: prices count
it, the account lists it, the runtime sends it.

A value is made in one stage's layout and read in another's. Between physical stages it goes as a message; between two
stages that the same ranks run (interleaved), its pieces are exchanged among them where the layouts differ. `R` is
handed over as `I`: the same pieces, and the reader reduces their gradient before it goes back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from meshwright.capture.program import Program, Value
from meshwright.layout import Conversion, I, Layout, S, conversion
from meshwright.layout.convert import convert_gradient
from meshwright.layout.crossmesh import Pair, Route, Side, route
from meshwright.plan import Plan, Stage
from meshwright.price.handover import Rate, inner_rate, rates
from meshwright.schedule.pipeline import Pipeline

MOST = 1e12
"""Bytes per second where a plan says nothing of its links."""


@dataclass(frozen=True, slots=True)
class Form:
    """A value as a stage holds it."""

    stage: Stage
    layout: Layout

    @property
    def side(self) -> Side:
        return Side(self.stage.mesh, self.layout.reduced())

    def reduced(self, gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A gradient of this form, with nothing left to reduce; collectives run on the transport in force."""
        if self.layout.reduced() == self.layout:
            return gradient
        return convert_gradient(gradient, self.layout.reduced(), self.layout, self.stage.mesh, shape=shape)

    def reduction(self, shape: tuple[int, ...], itemsize: int) -> Conversion:
        """What `reduced` runs, as its backward."""
        return conversion(self.layout.reduced(), self.layout, shape, itemsize, self.stage.mesh, grad=True)

    def spreading(self, shape: tuple[int, ...], itemsize: int) -> Conversion:
        """What `spread` runs, as its backward."""
        return conversion(self.layout, self.layout.reduced(), shape, itemsize, self.stage.mesh, grad=True)

    def spread(self, gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A whole gradient as the backward of whoever made this form takes it."""
        if self.layout.reduced() == self.layout:
            return gradient
        return convert_gradient(gradient, self.layout, self.layout.reduced(), self.stage.mesh, shape=shape)


@dataclass(frozen=True)
class Edge:
    """A value between two stages. The way there carries the value, the way back its gradient."""

    value: Value
    name: str
    source: Form
    target: Form
    pair: Pair

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.sizes

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.value.type.dtype)
        return found

    @property
    def alike(self) -> bool:
        """Whether every rank has the same piece on both sides."""
        return self.source.side.boxes(self.shape) == self.target.side.boxes(self.shape)

    @cached_property
    def there(self) -> Route:
        return route(self.shape, self.source.side, self.target.side, self.value.type.itemsize, self.pair)

    @cached_property
    def back(self) -> Route:
        return route(self.shape, self.target.side, self.source.side, self.value.type.itemsize, self.pair)


class Edges:
    """Of one physical stage. forms: each value that its ranks hold, as they first hold it. messages: by (the segment
    that made them, from stage, to stage), in one order on all ranks. local: how a stage gets a value from the form in
    which its ranks hold it. uses: how often each value is read or sent on."""

    def __init__(self, plan: Plan, program: Program, pipeline: Pipeline, stage: int) -> None:
        self.plan, self.program, self.pipeline, self.stage = plan, program, pipeline, stage
        self.pair = pair_of(plan)
        self._outputs: dict[int, list[Value]] = {}
        self.number = {index: plan.stage_at(run.mesh.ranks[0]) for run in plan.stages for index in run.segments}
        self.made = {name: index for index, segment in enumerate(program.segments) for name in segment.outputs}
        self.readers: dict[str, list[int]] = {}
        for index, segment in enumerate(program.segments):
            for name in dict.fromkeys(segment.inputs):
                self.readers.setdefault(name, []).append(index)
        self.messages: dict[tuple[int, int, int], tuple[Edge, ...]] = {}
        self.uses: Counter[str] = Counter()
        for hop in pipeline.hops():
            if stage in (hop.source, hop.target):
                names = self._carried(hop.segment, hop.target)
                self.messages[hop.segment, hop.source, hop.target] = tuple(
                    self._edge(name, self.form(name, hop.source), self.form(name, hop.target)) for name in names
                )
                if hop.source == stage:
                    self.uses.update(names)
        self.local: dict[tuple[str, int], Edge] = {}
        for name, readers in self.readers.items():
            for index in readers:
                if self.number[index] != stage:
                    continue
                self.uses[name] += 1
                run, held = plan.stage_of(index), self.form(name, stage)
                if run is not held.stage:
                    self.local[name, run.first] = self._edge(name, held, Form(run, self._read_layout(name, index)))

    def form(self, name: str, stage: int) -> Form:
        """As the stage's ranks first hold it: made there, or as its first reader there wants it, or on its way only."""
        maker = self.made[name]
        if self.number[maker] == stage:
            place = self.program.segments[maker].outputs.index(name)
            return Form(self.plan.stage_of(maker), Layout.parse(self.plan.choice(maker).outputs[place]))
        for index in self.readers[name]:
            if self.number[index] == stage:
                return Form(self.plan.stage_of(index), self._read_layout(name, index))
        run = self.plan.groups[stage][0]
        cut = S(0) if self.value(name).type.sizes else I
        return Form(run, Layout((cut,) * len(run.mesh.axes)))

    def value(self, name: str) -> Value:
        """With the sizes of a micro-batch."""
        segment = self.program.segments[self.made[name]]
        if segment.graph not in self._outputs:
            graph = self.program.graphs[segment.graph]
            values = graph.values()
            self._outputs[segment.graph] = [values[output] for output in graph.outputs]
        value = self._outputs[segment.graph][segment.outputs.index(name)]
        return replace(value, type=value.type.at(self.plan.microbatch))

    def _read_layout(self, name: str, index: int) -> Layout:
        place = self.program.segments[index].inputs.index(name)
        return Layout.parse(self.plan.choice(index).inputs[place])

    def _carried(self, segment: int, target: int) -> list[str]:
        """The values of a segment that a stage, or one after it on the way, reads."""
        found = []
        for name in self.program.segments[segment].outputs:
            readers = self.readers.get(name, [])
            if segment in self.pipeline.routed_via_stages:
                first = next(i for i in range(segment, len(self.number)) if self.number[i] == target)
                wanted = any(index >= first for index in readers)
            else:
                wanted = any(self.number[index] == target for index in readers)
            if wanted:
                found.append(name)
        return found

    def _edge(self, name: str, source: Form, target: Form) -> Edge:
        return Edge(self.value(name), name, source, target, self.pair)


def pair_of(plan: Plan) -> Pair:
    """What any two ranks get: the plan's wires between stages, or its meshes' slowest links where it names none."""
    known, inner = rates(plan), [inner_rate(group[0].mesh) for group in plan.groups]
    stage_of = {rank: number for number, group in enumerate(plan.groups) for rank in group[0].mesh.ranks}
    slowest = Rate(max(rate.latency_s for rate in inner), min(MOST, *(rate.bandwidth for rate in inner)))

    def pair(source: int, target: int) -> tuple[float, float]:
        a, b = stage_of[source], stage_of[target]
        rate = inner[a] if a == b else known.get((a, b), slowest)
        return rate.latency_s, rate.bandwidth

    return pair
