"""Plans by brute force: every strategy of every op, every boundary, every storage of every weight, every chain.

It shares what may be chosen (`space`) and what it costs (`price_segment`) with the solver, not how it is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from meshwright.capture.program import Program, Value
from meshwright.cluster import Mesh
from meshwright.layout import Layout
from meshwright.pins.pins import Pins
from meshwright.plan import Choice, ParameterPlan
from meshwright.planner.space.segment import Space, boundary_layouts, space
from meshwright.price.bucketing import whole_bytes
from meshwright.price.flow import canonical
from meshwright.price.parameter import ParameterPrice, Setting, chain_uses, parameter_price
from meshwright.price.segment import price_segment
from meshwright.profile.lookup import lookup_segments

Way = tuple[float, int, int]
"""Seconds, bytes held, largest transient."""

Boundary = tuple[tuple[str, str], ...]
"""The layout of each value that enters or leaves, and what was decided for each tied weight, by name."""


@dataclass(frozen=True)
class Oracle:
    program: Program
    mesh: Mesh
    setting: Setting

    def ways(self) -> list[Way]:
        """Every chain that nothing beats in seconds, held bytes and transient at once."""
        alive: dict[Boundary, list[Way]] = {(): [(0.0, 0, 0)]}
        for index in range(len(self.program.segments)):
            following: dict[Boundary, list[Way]] = {}
            here = self._segment(index)
            for before, labels in alive.items():
                for boundary, options in here.items():
                    after = self._after(index, dict(before), dict(boundary))
                    if after is None:
                        continue
                    following.setdefault(after, []).extend(
                        (a[0] + b[0], a[1] + b[1], max(a[2], b[2])) for a in labels for b in options
                    )
            alive = {key: pareto(labels) for key, labels in following.items()}
        return pareto([label for labels in alive.values() for label in labels])

    def size(self) -> int:
        """About how many choices there are to price."""
        return sum(self._size(index) for index in range(len(self.program.segments)))

    def _size(self, index: int) -> int:
        made = self._space(index)
        crossing = [*(value.name for value in made.graph.inputs), *made.graph.outputs]
        return prod(len(boundary_layouts(made, name)) for name in crossing) * prod(map(len, made.strategies))

    def best_s(self, budget: int) -> float:
        return min((s for s, held, transient in self.ways() if held + transient <= budget), default=float("inf"))

    def _after(self, index: int, before: dict[str, str], here: dict[str, str]) -> Boundary | None:
        if any(before.get(name, text) != text for name, text in here.items()):
            return None
        later = {name for segment in self.program.segments[index + 1 :] for name in (*segment.inputs, *segment.params)}
        return tuple(sorted((name, text) for name, text in (before | here).items() if name in later))

    def _space(self, index: int) -> Space:
        segment = self.program.segments[index]
        graph = self.program.graphs[segment.graph]
        return space(graph, segment.params, self.program.batch, self.mesh, Pins(), self.setting)

    def _segment(self, index: int) -> dict[Boundary, list[Way]]:
        made = self._space(index)
        found: dict[Boundary, list[Way]] = {}
        for layouts, choice in self._choices(index, made):
            point = price_segment(made.graph, choice, {}, self.mesh, self.setting, {})
            for texts, more in self._weights(index, made, choice.parameters):
                way = (
                    point.seconds(self.setting.microbatches) + more[0],
                    point.held_bytes + more[1],
                    point.transient_bytes + more[2],
                )
                found.setdefault(tuple(sorted({**layouts, **texts}.items())), []).append(way)
        return {key: pareto(labels) for key, labels in found.items()}

    def _choices(self, index: int, made: Space) -> Iterator[tuple[dict[str, str], Choice]]:
        """Every Choice of a segment, with the layouts of its boundary by name."""
        segment = self.program.segments[index]
        crossing = [*(value.name for value in made.graph.inputs), *made.graph.outputs]
        names = [*segment.inputs, *segment.outputs]
        layouts = [boundary_layouts(made, n) for n in crossing]
        cut = len(made.graph.inputs)
        for edge in product(*layouts):
            given = tuple(str(layout) for layout in edge)
            for picked in product(*(range(len(one)) for one in made.strategies)):
                strategies = {
                    op.name: made.strategies[i][at].text
                    for i, (op, at) in enumerate(zip(made.graph.ops, picked, strict=True))
                }
                if not _two_copies(made, picked, dict(zip(made.graph.outputs, edge[cut:], strict=True))):
                    continue
                for computes in self._computes(index, made, picked):
                    choice = Choice(segment.graph, given[:cut], given[cut:], strategies, computes)
                    yield dict(zip(names, given, strict=True)), choice

    def _weights(self, index: int, made: Space, computes: dict[str, str]) -> Iterator[tuple[dict[str, str], Way]]:
        """Every storage of every weight that computes so; tied ones by name, paid for by the first that reads them."""
        segment = self.program.segments[index]
        options = [
            [plan for plan in self._plans(name, made, value.name) if plan.compute == computes[value.name]]
            for value, name in zip(made.graph.params, segment.params, strict=True)
        ]
        for plans in product(*options):
            texts: dict[str, str] = {}
            seconds, held, transient = 0.0, 0, 0
            for value, name, plan in zip(made.graph.params, segment.params, plans, strict=True):
                uses = self.program.uses_of(name)
                if len(uses) > 1:
                    texts[name] = str(plan)
                if uses[0] == index:
                    price = self._price(value, plan, uses, whole_bytes(made.graph.params))
                    seconds, held = seconds + price.total_s, held + price.static_bytes
                    transient += price.transient_bytes
            yield texts, (seconds, held, transient)

    def _price(self, value: Value, plan: ParameterPlan, users: Sequence[int], together: int) -> ParameterPrice:
        uses = chain_uses(users, len(self.program.segments), self.setting.microbatches, lookup_segments(self.program))
        return parameter_price(value, plan, self.mesh, self.setting, uses, together)

    def _plans(self, name: str, made: Space, local: str) -> list[ParameterPlan]:
        """What may be decided for a weight; for a tied one whatever any of its readers would choose from."""
        users = self.program.uses_of(name)
        if len(users) == 1:
            return list(made.parameters[local])
        found: dict[ParameterPlan, None] = {}
        for index in users:
            segment = self.program.segments[index]
            graph = self.program.graphs[segment.graph]
            there = space(graph, segment.params, self.program.batch, self.mesh, Pins(), self.setting)
            found.update(dict.fromkeys(there.parameters[graph.params[segment.params.index(name)].name]))
        return list(found)

    def _computes(self, index: int, made: Space, picked: tuple[int, ...]) -> Iterator[dict[str, str]]:
        """What the weights may be used as: one that is read once, in the whole program, as its reader wants it."""
        options: list[list[str]] = []
        for value, name in zip(made.graph.params, self.program.segments[index].params, strict=True):
            places = made.uses[value.name]
            wants = [canonical(made.strategies[i][picked[i]].operands[position], value.grad) for i, position in places]
            computes = list(dict.fromkeys(plan.compute for plan in self._plans(name, made, value.name)))
            if len(wants) == 1 and len(self.program.uses_of(name)) == 1:
                computes = [text for text in computes if _used_as(canonical(Layout.parse(text), value.grad), wants[0])]
            options.append(computes)
        for texts in product(*options):
            yield {value.name: text for value, text in zip(made.graph.params, texts, strict=True)}


def _used_as(made: Layout, want: Layout) -> bool:
    return all(a == b or (a.kind, b.kind) == ("I", "P") for a, b in zip(made, want, strict=True))


def _two_copies(made: Space, picked: tuple[int, ...], outputs: dict[str, Layout]) -> bool:
    """At most two layouts of a value are made."""
    for name, places in made.uses.items():
        grad = made.values[name].grad
        wants = {canonical(made.strategies[i][picked[i]].operands[position], grad) for i, position in places}
        if name in outputs:
            wants.add(outputs[name])
        if len(wants) > 2:
            return False
    return True


def pareto(labels: list[Way]) -> list[Way]:
    kept: list[Way] = []
    for label in sorted(set(labels)):
        if not any(other[1] <= label[1] and other[2] <= label[2] for other in kept):
            kept.append(label)
    return kept
