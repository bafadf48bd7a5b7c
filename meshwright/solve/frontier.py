"""FrontierPoints of one distinct segment graph, for every pair of boundary layouts; worked out once, kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshwright.capture.program import Program, Segment
from meshwright.cluster import Mesh
from meshwright.plan import FrontierPoint, ParameterPlan
from meshwright.price.segment import price_segment
from meshwright.solve.intra import Answer, Question, choose
from meshwright.solve.pins import Pins
from meshwright.solve.space import LayoutSet, Space, boundary_layouts, space

Fixed = dict[str, ParameterPlan]


@dataclass(frozen=True, slots=True)
class Point:
    """A FrontierPoint with what was decided for the segment's parameters and the solver's own objective."""

    point: FrontierPoint
    parameters: dict[str, ParameterPlan]
    objective: float


@dataclass(slots=True)
class Frontier:
    """Answers by question. `fixed`: tied parameters by full name; they are charged where first used."""

    program: Program
    mesh: Mesh
    pins: Pins
    optimizer: str
    method: str = "auto"
    spaces: dict[int, Space] = field(default_factory=dict)
    answers: dict[tuple[int, Question], Answer | None] = field(default_factory=dict)
    points: dict[tuple[int, Question, tuple[tuple[str, int], ...]], Point] = field(default_factory=dict)

    def space(self, segment: Segment) -> Space:
        if segment.graph not in self.spaces:
            graph = self.program.graph(segment)
            self.spaces[segment.graph] = space(graph, segment.params, self.program.batch, self.mesh, self.pins)
        return self.spaces[segment.graph]

    def boundaries(self, segment: Segment) -> list[LayoutSet]:
        """Layouts in which the segment may hand its outputs over; the loss is everywhere the same."""
        here = self.space(segment)
        found: list[LayoutSet] = [()]
        for name in here.graph.outputs:
            options = boundary_layouts(here.values[name], here.batch_dims[name], self.mesh, self.pins)
            found = [(*head, layout) for head in found for layout in options]
        return found

    def point(
        self, index: int, inputs: LayoutSet, outputs: LayoutSet, fixed: Fixed, price_per_byte: float
    ) -> Point | None:
        segment = self.program.segments[index]
        local = self._local(segment, fixed)
        question = Question(inputs, outputs, tuple(sorted(local.items())), self.optimizer, price_per_byte)
        key = (segment.graph, question)
        if key not in self.answers:
            self.answers[key] = choose(self.space(segment), question, segment.graph, self.method)
        answer = self.answers[key]
        if answer is None:
            return None
        charged = self._charged(index, segment)
        priced = (*key, tuple(charged.items()))
        if priced not in self.points:
            graph = self.space(segment).graph
            found = price_segment(graph, answer.choice, answer.parameters, self.mesh, self.optimizer, charged)
            self.points[priced] = Point(found, answer.parameters, answer.objective)
        return self.points[priced]

    def _local(self, segment: Segment, fixed: Fixed) -> Fixed:
        graph = self.program.graph(segment)
        return {v.name: fixed[name] for v, name in zip(graph.params, segment.params, strict=True) if name in fixed}

    def _charged(self, index: int, segment: Segment) -> dict[str, int]:
        uses = {name: self.program.uses_of(name) for name in segment.params}
        pairs = zip(self.program.graph(segment).params, segment.params, strict=True)
        return {value.name: len(uses[name]) for value, name in pairs if uses[name][0] == index}


def tied(program: Program) -> tuple[str, ...]:
    """Parameters that several segments read: decided for all of them at once."""
    return tuple(p.name for p in program.parameters if len(program.uses_of(p.name)) > 1)


def tied_options(frontier: Frontier, name: str) -> Iterable[ParameterPlan]:
    """What any of its users would choose from; the others convert inside the segment."""
    found: dict[ParameterPlan, None] = {}
    for index in frontier.program.uses_of(name):
        segment = frontier.program.segments[index]
        local = frontier.program.graph(segment).params[segment.params.index(name)].name
        found.update(dict.fromkeys(frontier.space(segment).parameters[local]))
    return found
