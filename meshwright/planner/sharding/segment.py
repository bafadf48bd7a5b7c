"""The selection Problem of one segment: a strategy for each op and a storage for each weight, given boundary layouts.

The Problem. Nodes: an op (options: its strategies; cost: seconds of its local work and of the collectives inside
its lowering), a parameter (options: ParameterPlans; cost: gather, reduction, update), a boundary value (options: the
layouts it may cross in), a common value or buffer (one option), and, for a value with several readers, a *copy*
(options: the one or two layouts materialised). Edges: producer -> copy pays the conversions (forward and backward
together); copy -> reader forbids what is not among them; with one reader the producer -> reader edge pays directly.
Costs of one micro-batch are multiplied by their number. A price per byte charges held bytes: weights with their states,
and saved tensors. A tied weight is part of the boundary, so that all its readers agree.

`SegmentProblem` builds it; `eliminated` eliminates all but the boundary nodes and reads a Choice back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from meshwright.errors import ProblemError
from meshwright.layout import I, Layout, conversion
from meshwright.plan import Choice, ParameterPlan
from meshwright.planner.space.image_boundaries import ALL
from meshwright.planner.space.long_lived import MOST_ALIVE
from meshwright.planner.space.saved import Matrix
from meshwright.planner.space.segment import LayoutSet, Space, boundary_layouts, conversions_s, operand_layouts
from meshwright.price.bucketing import whole_bytes
from meshwright.price.flow import canonical, invariant
from meshwright.price.parameter import parameter_price
from meshwright.rules import Strategy
from meshwright.select import Problem, ProblemBuilder
from meshwright.select.problem import Floats
from meshwright.select.tables import TablesPlan, tables_plan

LARGEST_TABLE = 5e7
"""Entries of the largest table (400 MB); a segment that needs more is asked pair by pair."""


@dataclass(frozen=True, slots=True)
class Tied:
    """A weight that several segments read.

    options: the same for each of them.
    uses: how many segments read it, in the one that pays for it; else 0.
    """

    options: tuple[ParameterPlan, ...]
    uses: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A solution. strategies: of each op, as the choice names them."""

    choice: Choice
    parameters: dict[str, ParameterPlan]
    objective: float
    strategies: dict[str, Strategy]


@dataclass(frozen=True, slots=True)
class _Side:
    """A node of the Problem and the layout of each of its options, as producer or reader."""

    node: int
    layouts: LayoutSet


class _Conversion(NamedTuple):
    """Conversions of a value from each layout of a producer to the layouts that each option of a reader needs."""

    name: str
    maker: _Side
    node: int
    wants: tuple[LayoutSet, ...]


class SegmentProblem:
    """The Problem of a segment at price zero, and the places of its parts.

    boundary: inputs, outputs, tied weights.
    held: of each option, bytes of weights with their states.
    overlapped_s: of each option, seconds of gathers and reductions that overlap compute.
    after_s: of each option, seconds of updates, which overlap nothing.
    """

    def __init__(
        self,
        space: Space,
        tied: Mapping[str, Tied] | None = None,
        fixed: Mapping[str, Layout] | None = None,
        uses: float = 1.0,
        image_cuts: int = ALL,
    ) -> None:
        """fixed: boundary values with one layout only.
        uses: as `chain_uses`, of weights that no other segment reads.
        """
        self.space, self.tied, self.fixed = space, tied or {}, fixed or {}
        self.uses, self.image_cuts = uses, image_cuts
        self.micro = space.setting.microbatches
        self.build = ProblemBuilder()
        self._held: list[Floats] = []
        self._apart_s: list[Floats] = []
        self.options: dict[str, tuple[ParameterPlan, ...]] = {}
        self.op_nodes = [self._op_node(index) for index in range(len(space.graph.ops))]
        self.makers: dict[str, _Side] = {}
        self.conversions: list[_Conversion] = []
        self.outputs = [self._boundary(name) for name in space.graph.outputs]
        self._arguments()
        self._results()
        for name, side in self.makers.items():
            self._connect(name, side)
        self.inputs = [self.makers[value.name] for value in space.graph.inputs]
        self.problem: Problem = self.build.build()
        self.held: Floats = np.concatenate(self._held)
        self.overlapped_s, self.after_s = np.concatenate(self._apart_s, axis=1)

    @property
    def boundary(self) -> list[_Side]:
        return self.inputs + self.outputs + [self.makers[name] for name in self.tied]

    @cached_property
    def prepared(self) -> TablesPlan | None:
        """The elimination of all but the boundary, for any price per byte; None where its tables are too large."""
        return self._eliminated([side.node for side in self.boundary])

    @cached_property
    def closed(self) -> TablesPlan | None:
        """The elimination of the boundary too, which takes smaller tables."""
        return self._eliminated([])

    def _eliminated(self, kept: list[int]) -> TablesPlan | None:
        weights = {self.makers[value.name].node for value in self.space.graph.params}
        keeping = {node for node, saved in zip(self.op_nodes, self.space.op_kept, strict=True) if saved}
        try:
            return tables_plan(self.problem, kept, LARGEST_TABLE, weights | keeping)
        except ProblemError:
            return None

    def at(
        self,
        price_per_byte: float,
        recompute: bool = False,
        cap_bytes: int | None = None,
        overlap_weight: float | None = None,
        flight: float = 1.0,
    ) -> Problem:
        """The Problem with held bytes charged.

        price_per_byte: in seconds.
        recompute: a saved tensor may be recomputed instead, for a lower bound on the seconds that takes.
        cap_bytes: options with a larger transient are forbidden.
        overlap_weight: of communication that overlaps compute; None adds all up.
        flight: micro-batches that hold saved tensors at a time.
        """
        if not price_per_byte and cap_bytes is None and overlap_weight is None:
            return self.problem
        costs = self.problem.costs + price_per_byte * self.held
        if overlap_weight is not None:
            costs += (overlap_weight - 1.0) * self.overlapped_s + overlap_weight * self.after_s
        for index, (node, kept) in enumerate(zip(self.op_nodes, self.space.op_kept, strict=True)):
            where = slice(self.problem.offsets[node], self.problem.offsets[node + 1])
            for part in kept:
                charged = price_per_byte * flight
                costs[where] += part.charge_s(charged, self.micro) if recompute else charged * part.bytes
            if cap_bytes is not None:
                running = self.space.running_bytes(index)
                costs[where][running > max(cap_bytes, running.min())] = np.inf
        return replace(self.problem, costs=costs)

    def answer(self, picked: list[int], graph_index: int, objective: float) -> Answer:
        graph = self.space.graph
        made = {
            op.name: self.space.strategies[index][picked[self.op_nodes[index]]] for index, op in enumerate(graph.ops)
        }
        strategies = {name: one.text for name, one in made.items()}
        parameters = {v.name: self.options[v.name][picked[self.makers[v.name].node]] for v in graph.params}
        inputs, outputs = (
            tuple(str(side.layouts[picked[side.node]]) for side in sides) for sides in (self.inputs, self.outputs)
        )
        computes = {name: plan.compute for name, plan in parameters.items()}
        return Answer(Choice(graph_index, inputs, outputs, strategies, computes), parameters, objective, made)

    def _node(self, costs: Floats, held: Floats | None = None, name: str = "", apart_s: Floats | None = None) -> int:
        self._held.append(np.zeros(len(costs)) if held is None else held)
        self._apart_s.append(np.zeros((2, len(costs))) if apart_s is None else apart_s)
        return self.build.node(costs, name=name)

    def _op_node(self, index: int) -> int:
        return self._node(self.micro * self.space.op_costs[index], name=self.space.graph.ops[index].name)

    def _boundary(self, name: str) -> _Side:
        space = self.space
        alone = self.fixed.get(name)
        layouts: LayoutSet = boundary_layouts(space, name, self.image_cuts) if alone is None else (alone,)
        return _Side(self._node(np.zeros(len(layouts)), name=f"{name} at the boundary"), layouts)

    def _arguments(self) -> None:
        graph, whole = self.space.graph, invariant(self.space.mesh)
        mesh, setting, together = self.space.mesh, self.space.setting, whole_bytes(graph.params)
        for value in graph.inputs:
            self.makers[value.name] = self._boundary(value.name)
        for value in (*graph.shared_values, *graph.buffers):
            self.makers[value.name] = _Side(self._node(np.zeros(1), name=value.name), (whole,))
        for value in graph.params:
            tied = self.tied.get(value.name)
            options = tied.options if tied else self.space.parameters[value.name]
            uses = tied.uses if tied else self.uses
            costs, held, apart_s = np.zeros(len(options)), np.zeros(len(options)), np.zeros((2, len(options)))
            if uses:
                prices = [parameter_price(value, plan, mesh, setting, uses, together) for plan in options]
                costs = np.array([price.total_s for price in prices])
                held = np.array([float(price.static_bytes) for price in prices])
                if self.space.mesh.any_overlap:
                    apart_s = np.array([(price.async_comm_s, price.step_s) for price in prices]).T
            self.options[value.name] = options
            layouts = tuple(canonical(Layout.parse(plan.compute), value.grad) for plan in options)
            self.makers[value.name] = _Side(self._node(costs, held, value.name, apart_s), layouts)

    def _results(self) -> None:
        for index, op in enumerate(self.space.graph.ops):
            for position, value in enumerate(op.results):
                layouts = tuple(canonical(made.results[position], value.grad) for made in self.space.strategies[index])
                self.makers[value.name] = _Side(self.op_nodes[index], layouts)

    def _readers(self, name: str) -> list[_Side]:
        graph = self.space.graph
        found = [
            _Side(self.op_nodes[place[0]], tuple(operand_layouts(self.space, place))) for place in self.space.uses[name]
        ]
        found += [side for output, side in zip(graph.outputs, self.outputs, strict=True) if output == name]
        whole = (invariant(self.space.mesh),)
        return found + [_Side(self._node(np.zeros(1)), whole) for _, updated in graph.updates if updated == name]

    def _connect(self, name: str, maker: _Side) -> None:
        readers = self._readers(name)
        if len(readers) == 1:
            self.build.edge(maker.node, readers[0].node, self._direct(name, maker, readers[0]))
            self.conversions.append(
                _Conversion(name, maker, readers[0].node, tuple((want,) for want in readers[0].layouts))
            )
        elif readers:
            self._copy(name, maker, readers)

    def _direct(self, name: str, maker: _Side, reader: _Side) -> Matrix:
        """Seconds of the conversions from producer to its only reader. A parameter is used in the reader's layout, and
        pays for the conversion from storage itself."""
        if name in self.options and name not in self.tied:
            return self._as_used(name, maker, reader)
        return self._seconds(name, maker.layouts, reader.layouts)

    def _as_used(self, name: str, maker: _Side, reader: _Side) -> Matrix:
        """Each of the reader's layouts goes with one compute layout: the same, or whole where it is partial."""
        value, mesh = self.space.values[name], self.space.mesh
        found = np.full((len(maker.layouts), len(reader.layouts)), np.inf)
        made: dict[Layout, list[int]] = {}
        for at, layout in enumerate(maker.layouts):
            made.setdefault(layout, []).append(at)
        for at, want in enumerate(reader.layouts):
            held = Layout(tuple(I if state.kind == "P" else state for state in want))
            if held in made:
                same = conversion(held, want, value.type.sizes, value.type.itemsize, mesh, value.grad)
                found[made[held], at] = self.micro * same.total_s
        return found

    def _copy(self, name: str, maker: _Side, readers: list[_Side]) -> None:
        """A copy node for a value with several readers: one or two layouts, each converted from the producer's once.

        Among many layouts only pairs that differ on one mesh axis are offered: other pairs share no conversion, and
        would be most of the Problem. Among few all pairs are: pins may leave no others.
        """
        layouts = tuple(dict.fromkeys(layout for reader in readers for layout in reader.layouts))
        place = {layout: number for number, layout in enumerate(layouts)}
        every = range(len(layouts))
        sets = [*((i,) for i in every), *(pair for pair in combinations(every, 2) if len(layouts) <= MOST_ALIVE)]
        if len(layouts) > MOST_ALIVE:
            sets += _one_axis_apart(layouts)
        member = np.zeros((len(sets), len(layouts)), dtype=bool)
        for number, group in enumerate(sets):
            member[number, group] = True
        node = self._node(np.zeros(len(sets)), name=f"{name} copies")
        self.build.edge(maker.node, node, self._seconds(name, maker.layouts, layouts) @ member.T)
        self.conversions.append(
            _Conversion(name, maker, node, tuple(tuple(layouts[i] for i in group) for group in sets))
        )
        for reader in readers:
            wanted_at = [place[want] for want in reader.layouts]
            self.build.edge(node, reader.node, np.where(member[:, wanted_at], 0.0, np.inf))

    def moving_bytes(self, way: _Conversion) -> Matrix:
        """Transient bytes of each conversion, backward included, as `price_segment` counts them."""
        value, mesh = self.space.values[way.name], self.space.mesh
        sizes, item = value.type.sizes, value.type.itemsize

        @cache
        def each(made: Layout, want: Layout) -> int:
            return 2 * conversion(made, want, sizes, item, mesh, value.grad).transient_bytes

        found = [[max(each(made, want) for want in wants) for wants in way.wants] for made in way.maker.layouts]
        return np.array(found, dtype=float)

    def _seconds(self, name: str, made: LayoutSet, wants: LayoutSet) -> Matrix:
        key = (name, made, wants)
        if key not in self.space.matrices:
            self.space.matrices[key] = self.micro * conversions_s(self.space, name, made, wants)
        return self.space.matrices[key]


def _one_axis_apart(layouts: LayoutSet) -> list[tuple[int, ...]]:
    """Pairs that differ on one mesh axis."""
    _, states = np.unique([str(state) for layout in layouts for state in layout], return_inverse=True)
    states = states.reshape(len(layouts), -1)
    differ = (states[:, None] != states[None]).sum(axis=2)
    return [(i, j) for i, j in np.argwhere(differ == 1).tolist() if i < j]
