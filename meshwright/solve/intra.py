"""One segment, its boundary layouts fixed: which strategy for each op, which storage for each parameter.

The Problem. Nodes: an op (options: its strategies; cost: seconds of its local work and of the collectives inside
its lowering), a parameter (options: ParameterPlans; cost: gather, reduction, update), an argument or a fixed wish
(one option), and, for a value with several readers, a *copy* (options: the one or two layouts materialised).
Edges: producer -> copy pays the conversions (forward and backward together); copy -> reader forbids what is not
among them; with one reader the producer -> reader edge pays directly. `price_per_byte` adds what is held.

`build` makes the Problem, `choose` solves it and reads the Choice back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from meshwright.layout import Layout
from meshwright.plan import Choice, ParameterPlan
from meshwright.price.flow import invariant, settled
from meshwright.price.parameter import parameter_price
from meshwright.select import InfeasibleError, Problem, ProblemBuilder, Selection, solve
from meshwright.solve.space import LayoutSet, Matrix, Space, conversion_s, wanted


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a segment: boundary layouts, parameters decided elsewhere, and what a held byte costs."""

    inputs: LayoutSet
    outputs: LayoutSet
    fixed: tuple[tuple[str, ParameterPlan], ...] = ()
    optimizer: str = "adamw"
    price_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    choice: Choice
    parameters: dict[str, ParameterPlan]
    objective: float


@dataclass(frozen=True, slots=True)
class _Side:
    """A node of the Problem and the layout that each of its options makes or wants."""

    node: int
    layouts: LayoutSet


def choose(space: Space, question: Question, graph_index: int, method: str = "auto") -> Answer | None:
    """The cheapest answer, or None where pins and boundary layouts contradict each other."""
    builder = _Builder(space, question)
    try:
        selection = solve(builder.problem(), method=method)
    except InfeasibleError:
        return None
    return builder.answer(selection, graph_index)


def build(space: Space, question: Question) -> Problem:
    return _Builder(space, question).problem()


class _Builder:
    def __init__(self, space: Space, question: Question) -> None:
        self.space, self.question = space, question
        self.build = ProblemBuilder()
        self.fixed = dict(question.fixed)
        self.options: dict[str, tuple[ParameterPlan, ...]] = {}
        self.op_nodes = [self._op_node(index) for index in range(len(space.graph.ops))]
        self.makers: dict[str, _Side] = {}
        self._arguments()
        self._results()
        for name, side in self.makers.items():
            self._connect(name, side)

    def problem(self) -> Problem:
        return self.build.build()

    def answer(self, selection: Selection, graph_index: int) -> Answer:
        graph = self.space.graph
        picked = selection.choice
        strategies = {
            op.name: self.space.strategies[index][int(picked[self.op_nodes[index]])].text
            for index, op in enumerate(graph.ops)
        }
        parameters = {
            value.name: self.options[value.name][int(picked[self.makers[value.name].node])] for value in graph.params
        }
        choice = Choice(
            graph_index,
            tuple(map(str, self.question.inputs)),
            tuple(map(str, self.question.outputs)),
            strategies,
            {name: plan.compute for name, plan in parameters.items()},
        )
        return Answer(choice, parameters, selection.cost)

    def _op_node(self, index: int) -> int:
        costs = self.space.op_costs[index] + self.question.price_per_byte * self.space.op_bytes[index]
        return self.build.node(costs, name=self.space.graph.ops[index].name)

    def _arguments(self) -> None:
        graph, whole = self.space.graph, invariant(self.space.mesh)
        for value, layout in zip(graph.inputs, self.question.inputs, strict=True):
            self.makers[value.name] = _Side(self.build.node([0.0], name=value.name), (layout,))
        for value in (*graph.commons, *graph.buffers):
            self.makers[value.name] = _Side(self.build.node([0.0], name=value.name), (whole,))
        for value in graph.params:
            fixed = self.fixed.get(value.name)
            options = self.space.parameters[value.name] if fixed is None else (fixed,)
            prices = [parameter_price(value, plan, self.space.mesh, self.question.optimizer) for plan in options]
            byte_s = self.question.price_per_byte
            costs = [price.total_s + byte_s * price.static_bytes for price in prices] if fixed is None else [0.0]
            self.options[value.name] = options
            layouts = tuple(settled(Layout.parse(plan.compute), value.grad) for plan in options)
            self.makers[value.name] = _Side(self.build.node(costs, name=value.name), layouts)

    def _results(self) -> None:
        for index, op in enumerate(self.space.graph.ops):
            for position, value in enumerate(op.results):
                layouts = tuple(settled(made.results[position], value.grad) for made in self.space.strategies[index])
                self.makers[value.name] = _Side(self.op_nodes[index], layouts)

    def _readers(self, name: str) -> list[_Side]:
        graph = self.space.graph
        found = [_Side(self.op_nodes[place[0]], tuple(wanted(self.space, place))) for place in self.space.uses[name]]
        wishes = [layout for output, layout in zip(graph.outputs, self.question.outputs, strict=True) if output == name]
        wishes += [invariant(self.space.mesh) for _, updated in graph.updates if updated == name]
        grad = self.space.values[name].grad
        return found + [_Side(self.build.node([0.0]), (settled(layout, grad),)) for layout in wishes]

    def _connect(self, name: str, maker: _Side) -> None:
        readers = self._readers(name)
        if len(readers) == 1:
            self.build.edge(maker.node, readers[0].node, self._direct(name, maker, readers[0]))
        elif readers:
            self._copy(name, maker, readers)

    def _direct(self, name: str, maker: _Side, reader: _Side) -> Matrix:
        """Conversions from what is made to what is wanted. A parameter read once is used as its reader wants it:
        storage -> compute pays for the rest."""
        if name in self.options and name not in self.fixed:
            return np.array([[0.0 if made == want else np.inf for want in reader.layouts] for made in maker.layouts])
        return self._seconds(name, maker.layouts, reader.layouts)

    def _copy(self, name: str, maker: _Side, readers: list[_Side]) -> None:
        """A value read in several places: materialise one or two layouts, each converted from the maker's once."""
        layouts = tuple(dict.fromkeys(layout for reader in readers for layout in reader.layouts))
        sets = [(i,) for i in range(len(layouts))] + list(combinations(range(len(layouts)), 2))
        member = np.array([[i in group for i in range(len(layouts))] for group in sets])
        node = self.build.node([0.0] * len(sets), name=f"{name} copies")
        self.build.edge(maker.node, node, self._seconds(name, maker.layouts, layouts) @ member.T)
        for reader in readers:
            wanted_at = [layouts.index(want) for want in reader.layouts]
            self.build.edge(node, reader.node, np.where(member[:, wanted_at], 0.0, np.inf))

    def _seconds(self, name: str, made: LayoutSet, wants: LayoutSet) -> Matrix:
        key = (name, made, wants)
        if key not in self.space.matrices:
            costs = [[conversion_s(self.space, name, source, target) for target in wants] for source in made]
            self.space.matrices[key] = np.array(costs)
        return self.space.matrices[key]
