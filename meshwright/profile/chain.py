"""The chain of segments: which storage each boundary value lies in, who saves it, who releases it.

Facts and peaks are worked out once per distinct graph and surroundings; the walk over the segments only looks them
up, so that profiling does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshwright.capture.program import Program, Segment, SegmentGraph
from meshwright.profile.facts import GraphFacts, graph_facts
from meshwright.profile.liveness import Boundary, Liveness, Round, liveness
from meshwright.profile.places import Place
from meshwright.profile.saved import DeviceKind

PROLOGUE = -1
Storage = tuple[int, str]
"""The segment that makes a storage, and the storage's name there."""


@dataclass(frozen=True, slots=True)
class Located:
    """A boundary value: its storage, that storage's size, and how the value lies there."""

    storage: Storage
    bytes: int
    strides: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class Use:
    """What becomes of a storage that crosses a boundary. Segments are noted in their order.

    segments: those that read it in forward, `last` the last of them. first_reader, last_reader: of those whose backward
    reads it, its maker among them; None where nobody does.
    """

    bytes: int
    gradient: bool
    segments: set[int] = field(default_factory=set)
    last: int = PROLOGUE
    first_reader: int | None = None
    last_reader: int = PROLOGUE

    def note(self, index: int, reads: bool) -> None:
        self.segments.add(index)
        self.last = index
        if reads:
            self.note_reader(index)

    def note_reader(self, index: int) -> None:
        self.last_reader = index
        if self.first_reader is None:
            self.first_reader = index

    @property
    def kept(self) -> bool:
        return self.first_reader is not None


@dataclass(frozen=True, slots=True)
class Link:
    """One segment in its place."""

    name: str
    facts: GraphFacts
    live: Liveness


@dataclass(frozen=True, slots=True)
class Chain:
    """uses: of every storage that crosses a boundary; batch tensors, parameters and buffers are not among them."""

    prologue: Link
    links: tuple[Link, ...]
    uses: dict[Storage, Use]


def walk(program: Program, device: DeviceKind, round_: Round) -> Chain:
    walker = _Walker(program, device)
    walker.locate()
    return walker.measure(round_)


@dataclass(slots=True)
class _Walker:
    program: Program
    device: DeviceKind
    facts: list[GraphFacts] = field(default_factory=list)
    bound: list[dict[str, Located]] = field(default_factory=list)
    located: dict[str, Located] = field(default_factory=dict)
    uses: dict[Storage, Use] = field(default_factory=dict)

    def locate(self) -> None:
        """Facts of the prologue and every segment, in order: where a value lies depends on who made it."""
        program = self.program
        fixed = [graph.at(program.batch) for graph in program.graphs]
        known: dict[object, GraphFacts] = {}
        self._enter(PROLOGUE, graph_facts(program.prologue.at(program.batch), self.device, {}, {}), {}, program.commons)
        for index, segment in enumerate(program.segments):
            graph = fixed[segment.graph]
            bound = self._bind(segment, graph)
            key = (segment.graph, _surroundings(bound))
            if key not in known:
                given = _local_places(bound)
                sizes = {given[name].storage: at.bytes for name, at in bound.items()}
                known[key] = graph_facts(graph, self.device, given, sizes)
            self._enter(index, known[key], bound, segment.outputs)

    def _bind(self, segment: Segment, graph: SegmentGraph) -> dict[str, Located]:
        """Local names of inputs and commons that segments hand over; tensors of the batch are plain."""
        values = graph.inputs + graph.commons
        pairs = zip(values, segment.inputs + segment.commons, strict=True)
        return {value.name: self.located[name] for value, name in pairs if name in self.located}

    def _enter(self, index: int, facts: GraphFacts, bound: dict[str, Located], outputs: Iterable[str]) -> None:
        """Note what the segment reads, and where what it hands over lies."""
        self.facts.append(facts)
        self.bound.append(bound)
        read, of = facts.read, facts.places.of
        source = {of[name].storage: at.storage for name, at in bound.items()}
        for local, storage in source.items():
            self.uses[storage].note(index, local in read)
        for local, name in zip(facts.graph.outputs, outputs, strict=True):
            place = of[local]
            if place.storage not in source and place.storage in facts.arguments:
                continue  # a view of a parameter or of the batch: held anyway
            storage = source.get(place.storage, (index, place.storage))
            size = facts.places.storage_bytes[place.storage]
            self.located[name] = Located(storage, size, place.strides, place.offset)
            use = self.uses.setdefault(storage, Use(size, False))
            use.gradient |= local in facts.returned
            if place.storage in read:
                use.note_reader(index)

    def measure(self, round_: Round) -> Chain:
        known: dict[object, Liveness] = {}
        last_use = {name: i for i, segment in enumerate(self.program.segments) for name in segment.params}
        links = []
        for index, facts in enumerate(self.facts, start=PROLOGUE):
            segment = self.program.segments[index] if index != PROLOGUE else None
            params = segment.params if segment else ()
            key = self._key(index, facts, [last_use[name] > index for name in params])
            if key not in known:
                known[key] = liveness(facts, self._boundary(index, facts, last_use), round_)
            links.append(Link(segment.name if segment else "prologue", facts, known[key]))
        return Chain(links[0], tuple(links[1:]), self.uses)

    def _key(self, index: int, facts: GraphFacts, used_later: list[bool]) -> object:
        """All that a Boundary says, at less cost: two segments with the same key have the same one."""
        key: list[object] = [id(facts), *used_later]
        for at in self.bound[index + 1].values():
            use = self.uses[at.storage]
            key += (use.first_reader is not None, use.last > index, use.first_reader == index)
        for name in facts.graph.outputs:
            made = self.uses.get((index, facts.places.of[name].storage))
            key.append(made is not None and made.last_reader > index)
        return tuple(key)

    def _boundary(self, index: int, facts: GraphFacts, last_use: dict[str, int]) -> Boundary:
        of, bound = facts.places.of, self.bound[index + 1]
        handed = {of[name].storage: self.uses[at.storage] for name, at in bound.items()}
        made = {of[name].storage: self.uses.get((index, of[name].storage)) for name in facts.graph.outputs}
        given = facts.handed & bound.keys()
        gradients = {name for name in given if self.uses[bound[name].storage].last > index}
        if index != PROLOGUE:
            params = zip(facts.graph.params, self.program.segments[index].params, strict=True)
            gradients |= {value.name for value, name in params if value.grad and last_use[name] > index}
        return Boundary(
            kept=frozenset(name for name, use in handed.items() if use.kept),
            lives_on=frozenset(name for name, use in handed.items() if use.last > index),
            released=frozenset(name for name, use in handed.items() if use.first_reader == index),
            has_gradient=frozenset(gradients),
            kept_later=frozenset(name for name, use in made.items() if use and use.last_reader > index),
        )


def _surroundings(bound: dict[str, Located]) -> tuple[object, ...]:
    """How the values handed over lie: sizes, strides, and which of them share a storage."""
    order: dict[Storage, int] = {}
    return tuple((order.setdefault(at.storage, len(order)), at.bytes, at.strides, at.offset) for at in bound.values())


def _local_places(bound: dict[str, Located]) -> dict[str, Place]:
    """Each value's place, its storage under the name of the first value here that lies in it."""
    first: dict[Storage, str] = {}
    return {name: Place(first.setdefault(at.storage, name), at.strides, at.offset) for name, at in bound.items()}
