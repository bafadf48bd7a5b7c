"""What each distinct segment graph offers, for every combination of boundary layouts and a few prices per byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshwright.capture.program import Program, Segment
from meshwright.cluster import Mesh
from meshwright.plan import FrontierPoint, ParameterPlan
from meshwright.price.segment import price_segment
from meshwright.solve.intra import Question, Solved, solve_segment
from meshwright.solve.pins import Pins
from meshwright.solve.space import LayoutSet, Space, space

Fixed = dict[str, ParameterPlan]


@dataclass(frozen=True, slots=True)
class Point:
    """A FrontierPoint with what was decided for the segment's parameters."""

    point: FrontierPoint
    parameters: dict[str, ParameterPlan]


@dataclass(slots=True)
class Frontier:
    """Solved once per distinct graph, tied parameters and price. `fixed`: tied parameters by full name."""

    program: Program
    mesh: Mesh
    pins: Pins
    optimizer: str
    spaces: dict[int, Space] = field(default_factory=dict)
    solved: dict[tuple[int, Question], Solved] = field(default_factory=dict)
    points: dict[object, Point] = field(default_factory=dict)

    def space(self, segment: Segment) -> Space:
        if segment.graph not in self.spaces:
            graph = self.program.graph(segment)
            self.spaces[segment.graph] = space(graph, segment.params, self.program.batch, self.mesh, self.pins)
        return self.spaces[segment.graph]

    def solve(self, index: int, fixed: Fixed, price_per_byte: float) -> Solved:
        segment = self.program.segments[index]
        local = self._local(segment, fixed)
        question = Question(tuple(sorted(local.items())), self.optimizer, price_per_byte)
        key = (segment.graph, question)
        if key not in self.solved:
            self.solved[key] = solve_segment(self.space(segment), question, segment.graph)
        return self.solved[key]

    def point(self, index: int, at: tuple[LayoutSet, LayoutSet], fixed: Fixed, price_per_byte: float) -> Point:
        """The segment's best way between these boundary layouts at this price, priced from scratch."""
        found = self.solve(index, fixed, price_per_byte)
        charged = self.charged(index)
        key = (id(found), at, tuple(charged.items()))
        if key not in self.points:
            answer = found.answer(at)
            graph = found.segment.space.graph
            point = price_segment(graph, answer.choice, answer.parameters, self.mesh, self.optimizer, charged)
            self.points[key] = Point(point, answer.parameters)
        return self.points[key]

    def charged(self, index: int) -> dict[str, int]:
        """Parameters that count in this segment, by local name, and how many segments use each: tied ones count in
        the first that does."""
        segment = self.program.segments[index]
        uses = {name: self.program.uses_of(name) for name in segment.params}
        pairs = zip(self.program.graph(segment).params, segment.params, strict=True)
        return {value.name: len(uses[name]) for value, name in pairs if uses[name][0] == index}

    def _local(self, segment: Segment, fixed: Fixed) -> Fixed:
        graph = self.program.graph(segment)
        return {v.name: fixed[name] for v, name in zip(graph.params, segment.params, strict=True) if name in fixed}


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
