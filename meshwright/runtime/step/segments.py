"""Segments on real tensors: forward and backward of one, or of a run of them, for one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.capture.counter import random_state
from meshwright.capture.execute import run_graph
from meshwright.capture.functional import BATCH_NORM
from meshwright.capture.program import Program, SegmentGraph
from meshwright.generate.pair import SegmentPair
from meshwright.generate.passing import Passing, passing
from meshwright.generate.pieces import Pieces, WholePieces, pieces
from meshwright.generate.program import Generated, Pair, generate
from meshwright.generate.strides import unturned
from meshwright.plan.stages import stage_shared_values
from meshwright.rules.rule import LOWERINGS
from meshwright.runtime.step.batches import Batches
from meshwright.runtime.step.exchange import Exchange
from meshwright.runtime.step.leaving import Leaving
from meshwright.runtime.step.link import Gradients, Link, run_link, segment_link, storage
from meshwright.runtime.step.microbatch import MicroBatch
from meshwright.runtime.step.offload import Host
from meshwright.runtime.step.parts import Part


class Segments:
    """What a rank's parts compute. `forward` and `backward` are told a segment; where it is one of a run, the first to
    be told runs them all and the others do nothing."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[Part],
        exchange: Exchange,
        buffers: dict[str, Tensor],
        batches: Batches,
    ) -> None:
        self.program, self.parts, self.exchange, self.batches = program, parts, exchange, batches
        self.buffers, self.device, self.plan = buffers, batches.device, batches.plan
        self.part_of = {index: part for part in parts for index in part.stage.segments}
        self.host, self.loss_scale = Host(self.device), 1.0
        self.last_pairs: dict[int, Pair] = {}
        self._links: dict[tuple[int, int], Link] = {}
        self._pieces: dict[tuple[int, bool], Pieces | WholePieces] = {}
        self._passing: dict[int, Passing] = {}
        self.leaving = Leaving()
        self._runs: dict[tuple[int, bool], Link] = {}
        for part in parts:
            for smaller, generated in enumerate(part.every):
                for run in generated.runs:
                    link = run_link(part, run)
                    self._runs |= {(index, bool(smaller)): link for index in range(run.first, run.end)}

    def keep_last(self, wanted: bool) -> None:
        """The last micro-batch has pairs of its own, in which nothing is recomputed."""
        every = [replace(choice, recompute=(), keep=()) for choice in self.plan.choices]
        bare = replace(self.plan.cut[-1][0], choices=tuple(every))
        self.last_pairs = {}
        if wanted and self.plan.recomputes:
            for part in self.parts:
                self.last_pairs |= generate(self.program, bare, self.device.type, stage=part.stage, at=part.at).pairs

    def link(self, index: int, micro: MicroBatch) -> Link:
        """A segment's own."""
        kept = self.last_pairs and self._is_last(micro)
        return self._link(index, self.last_pairs[index] if kept else self._generated(index, micro).pairs[index])

    def _is_last(self, micro: MicroBatch) -> bool:
        return micro.number == self.plan.microbatches - 1

    def _generated(self, index: int, micro: MicroBatch) -> Generated:
        """That of a segment's stage, for as many samples as the micro-batch has."""
        return self.part_of[index].every[-1 if self._is_last(micro) else 0]

    def _link(self, index: int, pair: Pair) -> Link:
        found = self._links.get((index, id(pair)))
        if found is None:
            found = segment_link(self.part_of[index], index, self.program.segments[index], pair)
            self._links[index, id(pair)] = found
        return found

    def _run(self, index: int, micro: MicroBatch) -> Link | None:
        """That of which a segment is a part."""
        if not self._runs or (self.last_pairs and self._is_last(micro)):
            return None
        return self._runs.get((index, self.part_of[index].last is not None and self._is_last(micro)))

    def forward(self, index: int, micro: MicroBatch) -> None:
        run = self._run(index, micro)
        if run is not None and index != run.first:
            return
        link = run or self.link(index, micro)
        outputs, updates, micro.saved[link.first] = link.forward(self._arguments(link, micro))
        self._update(link, updates, micro)
        self._made(link, micro, outputs)

    def pass_on(self, index: int, micro: MicroBatch) -> None:
        """Forward, keeping nothing for backward."""
        part = self.part_of[index]
        pair = self._generated(index, micro).pairs[index]
        assert isinstance(pair, SegmentPair), "what runs in chunks is not passed"
        if id(pair) not in self._passing:
            self._passing[id(pair)] = passing(pair, part.compiled)
        link = self._link(index, pair)
        given = dict(zip(link.names, self._arguments(link, micro), strict=True))
        outputs, updates = self._passing[id(pair)].forward(given)
        self._update(link, updates, micro)
        self._made(link, micro, outputs)

    def drop(self, index: int, micro: MicroBatch) -> None:
        """Let go of what a segment handed on."""
        for name in self.program.segments[index].outputs:
            micro.values.pop((name, self.part_of[index].stage.first), None)

    def evaluate(self, index: int, micro: MicroBatch) -> None:
        generated = self._generated(index, micro)
        link, graph = self._link(index, generated.pairs[index]), in_eval_mode(generated.sharded[index])
        given = dict(zip(link.names, self._arguments(link, micro), strict=True))
        found = run_graph(graph, given, self.device)
        self._made(link, micro, [found[name] for name in graph.outputs])

    def restore(self, index: int, micro: MicroBatch) -> None:
        """Make again what forward did not keep, before backward is due."""
        link = self.link(index, micro)
        made = self._pieces_of(link.pair, True)
        micro.saved[index] = made.restore(micro.saved[index], link.by_name(self._params(link)))

    def move(self, kind: str, index: int, micro: MicroBatch) -> None:
        """Some of what a forward kept goes to the host or begins to come back."""
        if kind == "offload":
            wanted, saved = self.plan.choice(index).offload, self.link(index, micro).pair.saved
            places = [at for at, name in enumerate(saved) if name in wanted]
            micro.saved[index], micro.away[index] = self.host.offload(micro.saved[index], places)
        elif kind == "release":
            self.host.release(micro.away[index])
        else:
            self.host.fetch(micro.away[index])

    def backward(self, index: int, micro: MicroBatch) -> None:
        run = self._run(index, micro)
        if run is not None and index != run.end - 1:
            return
        link = run or self.link(index, micro)
        incoming, saved = self._incoming(link, micro)
        params = self._params(link)
        early = None if index in self.exchange.recomputed else self.leaving.backward(link, micro.number)
        if early is not None:
            self._hand_back(link, early(saved, params, incoming), micro)
            link.part.store.scatter(index)
            return
        given = set(map(storage, (*incoming, *params))) if link.clones is None else set[int]()
        if index not in self.exchange.recomputed:
            inputs, weights = link.backward(saved, params, incoming)
        else:
            made = self._pieces_of(link.pair, True).backward(saved, link.by_name(params), incoming)
            inputs, weights = list(made[0].values()), list(made[1].values())
        self._hand_back(link, inputs, micro)
        self._add(link, link.unshared(weights, inputs, given))

    def input_half(self, index: int, micro: MicroBatch) -> None:
        """Backward as far as the gradients of the inputs."""
        link = self.link(index, micro)
        incoming, saved = self._incoming(link, micro)
        made = self._pieces_of(link.pair, index in self.exchange.recomputed)
        inputs, micro.rest[index] = made.input_half(saved, link.by_name(self._params(link)), incoming)
        self._hand_back(link, list(inputs.values()), micro)

    def weight_half(self, index: int, micro: MicroBatch) -> None:
        """The rest of it."""
        link = self.link(index, micro)
        made = self._pieces_of(link.pair, index in self.exchange.recomputed)
        given: list[Tensor] = []
        if link.half_clones is None and isinstance(made, Pieces):  # others have the gradients themselves left over
            given = micro.rest[index].tensors()
        gradients = made.weight_half(micro.rest.pop(index))
        self._add(link, link.half_unshared([gradients.get(name) for name in link.pair.grad_params], given))

    def _update(self, link: Link, updates: Mapping[str, Tensor], micro: MicroBatch) -> None:
        """Buffers take their new values the first time that a segment runs, and are read as they were then."""
        if not updates or link.first in micro.before:
            return
        local = dict(zip((value.name for value in link.pair.graph.buffers), link.segment.buffers, strict=True))
        if self.plan.order:
            micro.before[link.first] = {name: self.buffers[name] for name in link.segment.buffers}
        self.buffers.update((local[name], tensor) for name, tensor in updates.items())

    def _made(self, link: Link, micro: MicroBatch, outputs: Sequence[Tensor]) -> None:
        """Results take their place; boundary values go with their last reader, common ones with their stage's."""
        first = link.part.stage.first
        for name, tensor in zip(link.segment.outputs, outputs, strict=True):
            if name == self.program.loss:
                micro.loss = tensor
            else:
                micro.values[name, first] = tensor
        for name in link.reads:
            self.exchange.used(name, micro)
        if link.end == link.part.stage.end:
            micro.shared_values.pop(first, None)

    def _arguments(self, link: Link, micro: MicroBatch) -> list[Tensor]:
        """In the order of the graph's arguments."""
        part, segment = link.part, link.segment
        shared_values = micro.shared_values.get(part.stage.first)
        if shared_values is None:
            shared_values = micro.shared_values[part.stage.first] = self.shared_values(part, micro)
        buffers = micro.before.get(link.first, self.buffers)
        found = [self.exchange.value(name, part, micro) for name in segment.inputs]
        found += [shared_values[name] for name in segment.shared_values]
        found += self._params(link)
        found += [buffers[name] for name in segment.buffers]
        return found

    def shared_values(self, part: Part, micro: MicroBatch) -> dict[str, Tensor]:
        """Of one stage: its part of the batch, and what its part of the prologue makes."""
        stage = part.stage
        prologue = self._generated(stage.first, micro).prologue
        batch = self.batches.of_stage(stage.first, micro.number, micro.batch)
        with random_state(micro.random):
            found = run_graph(prologue, batch | self.buffers, self.device)
        names = stage_shared_values(self.program, stage.first, stage.end)
        return batch | dict(zip(names, (unturned(found[name]) for name in prologue.outputs), strict=True))

    def _incoming(self, link: Link, micro: MicroBatch) -> tuple[list[Tensor], list[Tensor]]:
        """(gradients of what it handed on, what it kept)."""
        incoming = [self._gradient(name, link.part, micro) for name in link.returned]
        saved = micro.saved.pop(link.first)
        if link.first in micro.away:
            saved = self.host.back(saved, micro.away.pop(link.first))
        return incoming, saved

    def _gradient(self, name: str, part: Part, micro: MicroBatch) -> Tensor:
        if name == self.program.loss:
            assert micro.loss is not None
            return torch.full_like(micro.loss, micro.weight * self.loss_scale)
        return self.exchange.gradient(name, part, micro)

    def _hand_back(self, link: Link, inputs: Gradients, micro: MicroBatch) -> None:
        for name, gradient in zip(link.input_names, inputs, strict=True):
            if gradient is not None:
                place = (name, link.part.stage.first)
                found = micro.gradients.get(place)
                micro.gradients[place] = gradient if found is None else found + gradient

    def _add(self, link: Link, gradients: Gradients) -> None:
        store = link.part.store
        for name, gradient in zip(link.weight_names, gradients, strict=True):
            if gradient is not None:
                store.add_gradient(name, gradient)
        for index in range(link.first, link.end):
            store.scatter(index)

    def _params(self, link: Link) -> list[Tensor]:
        store = link.part.store
        for index in range(link.first, link.end):
            store.ready(index)
        return [store.compute(name) for name in link.segment.params]

    def _pieces_of(self, pair: Pair, restored: bool) -> Pieces | WholePieces:
        key = (id(pair), restored)
        if key not in self._pieces:
            self._pieces[key] = pieces(pair, restored=restored, compiled=self.parts[0].compiled)
        return self._pieces[key]


BATCH_NORMS = (BATCH_NORM, f"{LOWERINGS}:batch_norm")


def in_eval_mode(graph: SegmentGraph) -> SegmentGraph:
    """A sharded segment as it is evaluated; BatchNorm that has its statistics needs nothing of other ranks."""
    ops = (
        replace(op, target=BATCH_NORM, kwargs=(("training", False),)) if op.target in BATCH_NORMS else op
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops), updates=())
