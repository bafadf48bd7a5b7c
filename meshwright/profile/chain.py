"""The chain of segments: which storage each boundary value lies in, who saves it, who releases it.

Facts and peaks are worked out once per distinct graph and surroundings; the walk over the segments only looks them
up, so that profiling does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.capture.program import Program, SegmentGraph
from meshwright.profile.facts import GraphFacts, graph_facts
from meshwright.profile.liveness import Boundary, Liveness, Round, liveness
from meshwright.profile.places import Place
from meshwright.profile.saved import DeviceKind

PROLOGUE = -1
Storage = tuple[int, str]
"""The segment that makes a storage, and the storage's name there."""


Lay = tuple[int, tuple[int, ...], int]
"""Bytes of a storage, and strides and offset of a value in it."""


class Located(NamedTuple):
    """A boundary value: the storage it lies in, and how (`number`: one per Lay, quicker to compare)."""

    storage: Storage
    lay: Lay
    number: int


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


@dataclass(frozen=True, slots=True)
class _Role:
    """What a segment of one graph in like surroundings does to the chain; worked out once, followed by each of them.

    reads: one (argument, whether backward reads it) per storage handed over. makes: what becomes of each output.
    """

    facts: GraphFacts
    reads: tuple[tuple[int, bool], ...]
    makes: tuple[_Made | None, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    """An output: its storage here, or the argument (`source`) whose storage it lies in; None: held anyway."""

    storage: str
    source: int | None
    lay: Lay
    number: int
    gradient: bool
    read: bool


def walk(program: Program, device: DeviceKind, round_: Round) -> Chain:
    walker = _Walker(program, device)
    walker.locate()
    return walker.measure(round_)


@dataclass(slots=True)
class _Walker:
    """roles, bound: of the prologue and every segment. bound: the places of its inputs and shared values, in order;
    None for tensors of the batch, which are plain."""

    program: Program
    device: DeviceKind
    roles: list[_Role] = field(default_factory=list)
    bound: list[list[Located | None]] = field(default_factory=list)
    located: dict[str, Located] = field(default_factory=dict)
    lays: dict[Lay, int] = field(default_factory=dict)
    uses: dict[Storage, Use] = field(default_factory=dict)

    def locate(self) -> None:
        """Roles of the prologue and every segment, in order: where a value lies depends on who made it."""
        program, located = self.program, self.located
        fixed = [graph.at(program.batch) for graph in program.graphs]
        known: dict[object, _Role] = {}
        prologue = graph_facts(program.prologue.at(program.batch), self.device, {}, {})
        self._enter(PROLOGUE, _role(prologue, [], self.lays), [], program.shared_values)
        for index, segment in enumerate(program.segments):
            bound = [located.get(name) for name in (*segment.inputs, *segment.shared_values)]
            key = _surroundings(segment.graph, bound)
            role = known.get(key)
            if role is None:
                given = _local_places(fixed[segment.graph], bound)
                sizes = {given[name].storage: at.lay[0] for name, at in _named(fixed[segment.graph], bound)}
                role = known[key] = _role(
                    graph_facts(fixed[segment.graph], self.device, given, sizes), bound, self.lays
                )
            self._enter(index, role, bound, segment.outputs)

    def _enter(self, index: int, role: _Role, bound: list[Located | None], outputs: Iterable[str]) -> None:
        """Note what the segment reads, and where what it hands over lies."""
        self.roles.append(role)
        self.bound.append(bound)
        for argument, reads in role.reads:
            self.uses[_at(bound, argument).storage].note(index, reads)
        for made, name in zip(role.makes, outputs, strict=True):
            if made is None:
                continue
            storage = (index, made.storage) if made.source is None else _at(bound, made.source).storage
            self.located[name] = Located(storage, made.lay, made.number)
            use = self.uses.get(storage)
            if use is None:
                use = self.uses[storage] = Use(made.lay[0], False)
            use.gradient |= made.gradient
            if made.read:
                use.note_reader(index)

    def measure(self, round_: Round) -> Chain:
        known: dict[object, Liveness] = {}
        last_use = {name: i for i, segment in enumerate(self.program.segments) for name in segment.params}
        links = []
        for index, role in enumerate(self.roles, start=PROLOGUE):
            segment = self.program.segments[index] if index != PROLOGUE else None
            shared = any(last_use[name] > index for name in segment.params) if segment else False
            later = [last_use[name] > index for name in segment.params] if segment and shared else []
            key = self._key(index, role, later)
            if key not in known:
                known[key] = liveness(role.facts, self._boundary(index, role.facts, last_use), round_)
            links.append(Link(segment.name if segment else "prologue", role.facts, known[key]))
        return Chain(links[0], tuple(links[1:]), self.uses)

    def _key(self, index: int, role: _Role, used_later: list[bool]) -> object:
        """All that a Boundary says, at less cost: two segments with the same key have the same one."""
        key: list[object] = [id(role), *used_later]
        for at in self.bound[index + 1]:
            if at is not None:
                use = self.uses[at.storage]
                key += (use.first_reader is not None, use.last > index, use.first_reader == index)
        for made in role.makes:
            if made is not None and made.source is None:
                key.append(self.uses[index, made.storage].last_reader > index)
        return tuple(key)

    def _boundary(self, index: int, facts: GraphFacts, last_use: dict[str, int]) -> Boundary:
        of, bound = facts.places.of, dict(_named(facts.graph, self.bound[index + 1]))
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


def _role(facts: GraphFacts, bound: list[Located | None], lays: dict[Lay, int]) -> _Role:
    of, names = facts.places.of, _names(facts.graph)
    source = {of[name].storage: i for i, (name, at) in enumerate(zip(names, bound, strict=False)) if at is not None}
    makes: list[_Made | None] = []
    for name in facts.graph.outputs:
        place = of[name]
        if place.storage not in source and place.storage in facts.arguments:
            makes.append(None)  # a view of a parameter or of the batch: held anyway
            continue
        lay = (facts.places.storage_bytes[place.storage], place.strides, place.offset)
        read, gradient = place.storage in facts.read, name in facts.returned
        number = lays.setdefault(lay, len(lays))
        makes.append(_Made(place.storage, source.get(place.storage), lay, number, gradient, read))
    reads = tuple((argument, storage in facts.read) for storage, argument in source.items())
    return _Role(facts, reads, tuple(makes))


def _at(bound: list[Located | None], argument: int) -> Located:
    found = bound[argument]
    assert found is not None
    return found


def _names(graph: SegmentGraph) -> list[str]:
    return [value.name for value in (*graph.inputs, *graph.shared_values)]


def _named(graph: SegmentGraph, bound: list[Located | None]) -> list[tuple[str, Located]]:
    return [(name, at) for name, at in zip(_names(graph), bound, strict=False) if at is not None]


def _surroundings(graph: int, bound: list[Located | None]) -> tuple[object, ...]:
    """How the values handed over lie: sizes, strides, and which of them share a storage."""
    order: dict[Storage, int] = {}
    key: list[object] = [graph]
    for at in bound:
        key += (None,) if at is None else (order.setdefault(at.storage, len(order)), at.number)
    return tuple(key)


def _local_places(graph: SegmentGraph, bound: list[Located | None]) -> dict[str, Place]:
    """Each value's place, its storage under the name of the first value here that lies in it."""
    first: dict[Storage, str] = {}
    return {name: Place(first.setdefault(at.storage, name), at.lay[1], at.lay[2]) for name, at in _named(graph, bound)}
