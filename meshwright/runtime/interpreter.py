"""The interpreter: plays one rank's Instructions on real tensors. No autograd runs here; pairs carry the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.capture.counter import RandomState, random_state
from meshwright.capture.execute import run_graph
from meshwright.capture.program import Program, Segment, SegmentGraph
from meshwright.errors import RunError
from meshwright.generate.pair import SegmentPair
from meshwright.generate.passing import Passing, passing
from meshwright.generate.pieces import Pieces, WholePieces, pieces
from meshwright.generate.program import Generated, Pair, generate
from meshwright.layout.transport import use_transport
from meshwright.plan import Instruction
from meshwright.plan.instruction import AWAY
from meshwright.plan.stages import stage_commons
from meshwright.runtime.away import Host
from meshwright.runtime.batches import Batches
from meshwright.runtime.evaluation import in_eval_mode
from meshwright.runtime.exchange import Exchange
from meshwright.runtime.fail import is_lost
from meshwright.runtime.live import LiveBytes
from meshwright.runtime.microbatch import MicroBatch
from meshwright.runtime.parts import Part
from meshwright.runtime.weigh import Weigher


class Interpreter:
    """Plays a step; `progress` is told each instruction before it runs. held_bytes: with `counts`, the most that
    micro-batches kept alive at once in the last step: saved values, boundary values, gradients, what is under way.
    live: all that was alive."""

    def __init__(
        self,
        program: Program,
        parts: Sequence[Part],
        exchange: Exchange,
        buffers: dict[str, Tensor],
        batches: Batches,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.program, self.parts, self.exchange, self.batches = program, parts, exchange, batches
        self.buffers, self.device, self.progress = buffers, batches.device, progress
        self.plan = batches.plan
        last = next((part for part in parts if part.stage.end == len(program.segments)), None)
        self.weigher = Weigher(program, last.every if last else (), self.plan, self.device)
        self.micro: list[MicroBatch] = []
        self.part_of = {index: part for part in parts for index in part.stage.segments}
        self.evaluating, self.counts, self.held_bytes, self.live = False, False, 0, LiveBytes()
        self.last_pairs: dict[int, Pair] = {}
        self._pieces: dict[tuple[int, bool], Pieces | WholePieces] = {}
        self._passing: dict[int, Passing] = {}
        self.host = Host(self.device)

    def run(
        self, instructions: Sequence[Instruction], batches: Sequence[Mapping[str, Tensor]], random: RandomState
    ) -> Tensor:
        """One step up to the optimizer's; returns the loss of all micro-batches."""
        self.evaluating, self.held_bytes = False, 0
        self._begin(batches, random)
        with self._counted():
            self.exchange.guests.lend()
            self._play(instructions)
            for part in self.parts:
                part.store.wait()
            self.exchange.guests.collect()
        return self._end()

    def evaluate(self, instructions: Sequence[Instruction], batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The loss in eval mode; gathers what it needs and keeps nothing."""
        self.evaluating = True
        self._begin(batches, RandomState(dropout=False))
        self.exchange.guests.lend()
        self._play(instructions)
        self.exchange.guests.forget()
        return self._end()

    def keep_last(self, wanted: bool) -> None:
        """With pairs of its own, in which nothing is recomputed."""
        every = [replace(choice, recompute=(), keep=()) for choice in self.plan.choices]
        bare = replace(self.plan, choices=tuple(every))
        self.last_pairs = {}
        if wanted and self.plan.recomputes:
            for part in self.parts:
                own = bare.remainder or bare
                self.last_pairs |= generate(self.program, own, self.device.type, stage=part.stage).pairs

    def _generated(self, part: Part, micro: MicroBatch) -> Generated:
        return part.every[-1] if micro.number == self.plan.microbatches - 1 else part.generated

    def _pair(self, part: Part, index: int, micro: MicroBatch) -> Pair:
        last = micro.number == self.plan.microbatches - 1
        return self.last_pairs[index] if last and self.last_pairs else self._generated(part, micro).pairs[index]

    def _play(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            self.progress(self.exchange.told(instruction))
            try:
                self._execute(instruction)
            except RunError:
                raise
            except Exception as error:
                if len(self.plan.stages) == 1 or is_lost(error):
                    raise
                raise self.exchange.failure(instruction, error) from error
            if self.counts:
                self._count()

    def _begin(self, batches: Sequence[Mapping[str, Tensor]], random: RandomState) -> None:
        each, rows = self.plan.microbatch, self.batches.rows
        weights = self._weights(batches)
        self.micro = [
            MicroBatch(k, batch, weight, replace(random, first_row=k * each, rows=rows[k]), uses=self._uses())
            for k, (batch, weight) in enumerate(zip(batches, weights, strict=True))
        ]

    def _uses(self) -> Counter[str]:
        """How often each value is read before it goes; the list says so where segments run more than once."""
        return Counter() if self.plan.order and not self.evaluating else self.exchange.uses.copy()

    def _weights(self, batches: Sequence[Mapping[str, Tensor]]) -> list[float]:
        if not self.weigher.counts:
            return self.weigher.by_samples()
        last = self.parts[-1]
        found = None
        if last.stage.end == len(self.program.segments):
            with use_transport(last.transport):
                own = [self.batches.of_stage(last.stage.first, k, batch) for k, batch in enumerate(batches)]
                found = self.weigher.weights(own, self.buffers)
        return self.exchange.share_numbers(found, len(batches))

    def _end(self) -> Tensor:
        losses = [micro.loss * micro.weight for micro in self.micro if micro.loss is not None]
        self.exchange.finish()
        for part in self.parts:
            part.store.end_step()
        found = None
        if losses:
            found = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        self.micro = []
        return self.exchange.share_loss(found)

    def _execute(self, one: Instruction) -> None:
        if one.kind == "step":
            return
        index = one.segment
        assert index is not None
        if one.microbatch is None:
            self._parameters(one.kind, index)
            return
        micro = self.micro[one.microbatch]
        if micro.weight == 0:
            return
        if one.peer is not None:
            self.exchange.transfer(one, micro)
            return
        part, segment = self.part_of[index], self.program.segments[index]
        with use_transport(part.transport):
            if one.kind == "forward":
                (self._evaluate if self.evaluating else self._forward)(part, index, segment, micro)
            elif one.kind == "pass":
                self._pass(part, index, segment, micro)
            elif one.kind == "drop":
                for name in segment.outputs:
                    micro.values.pop((name, part.stage.first), None)
            elif one.kind in AWAY:
                self._move(one.kind, self._pair(part, index, micro), index, micro)
            elif one.kind == "recompute":
                made = self._pieces_of(self._pair(part, index, micro), True)
                micro.saved[index] = made.restore(micro.saved[index], self._params(part, index, segment))
            elif one.kind == "backward_weight":
                made = self._pieces_of(self._pair(part, index, micro), self._recomputed(index))
                gradients = made.weight_half(micro.rest.pop(index), self._params(part, index, segment))
                self._add(part, index, segment, gradients, [])
            else:
                self._backward(one.kind, part, index, segment, micro)

    def _move(self, kind: str, pair: Pair, index: int, micro: MicroBatch) -> None:
        """Some of what a forward kept goes to the host or begins to come back."""
        if kind == "offload":
            places = [at for at, name in enumerate(pair.saved) if name in self.plan.choice(index).offload]
            micro.saved[index], micro.away[index] = self.host.offload(micro.saved[index], places)
        elif kind == "release":
            self.host.release(micro.away[index])
        else:
            self.host.fetch(micro.away[index])

    def _parameters(self, kind: str, index: int) -> None:
        part = self.part_of[index]
        with use_transport(part.transport):
            if kind == "gather":
                self.exchange.guests.take(index)
                part.store.gather(index)
            elif kind == "free":
                part.store.free(self.program.segments[index].params)
            else:
                part.store.reduce(index)
                self.exchange.guests.give_back(index)

    def _forward(self, part: Part, index: int, segment: Segment, micro: MicroBatch) -> None:
        pair = self._pair(part, index, micro)
        outputs, updates, micro.saved[index] = pair.forward(self._arguments(part, index, segment, micro))
        self._update(index, segment, pair.graph, updates, micro)
        self._made(part, index, segment, micro, outputs)

    def _pass(self, part: Part, index: int, segment: Segment, micro: MicroBatch) -> None:
        """Forward, keeping nothing for backward."""
        pair = self._generated(part, micro).pairs[index]
        assert isinstance(pair, SegmentPair), "what runs in chunks is not passed"
        if id(pair) not in self._passing:
            self._passing[id(pair)] = passing(pair, part.compiled)
        outputs, updates = self._passing[id(pair)].forward(self._arguments(part, index, segment, micro))
        self._update(index, segment, pair.graph, updates, micro)
        self._made(part, index, segment, micro, outputs)

    def _update(
        self, index: int, segment: Segment, graph: SegmentGraph, updates: Mapping[str, Tensor], micro: MicroBatch
    ) -> None:
        """Buffers take their new values the first time that a segment runs, and are read as they were then."""
        if not updates or index in micro.before:
            return
        local = dict(zip((value.name for value in graph.buffers), segment.buffers, strict=True))
        if self.plan.order:
            micro.before[index] = {name: self.buffers[name] for name in segment.buffers}
        self.buffers.update((local[name], tensor) for name, tensor in updates.items())

    def _evaluate(self, part: Part, index: int, segment: Segment, micro: MicroBatch) -> None:
        graph = in_eval_mode(self._generated(part, micro).sharded[index])
        found = run_graph(graph, self._arguments(part, index, segment, micro), self.device)
        self._made(part, index, segment, micro, [found[name] for name in graph.outputs])

    def _made(self, part: Part, index: int, segment: Segment, micro: MicroBatch, outputs: Sequence[Tensor]) -> None:
        """Results take their place; boundary values go with their last reader, common ones with their stage's."""
        first = part.stage.first
        for name, tensor in zip(segment.outputs, outputs, strict=True):
            if name == self.program.loss:
                micro.loss = tensor
            else:
                micro.values[name, first] = tensor
        for name in dict.fromkeys(segment.inputs):
            self.exchange.used(name, micro)
        if index == part.stage.end - 1:
            micro.commons.pop(first, None)

    def _arguments(self, part: Part, index: int, segment: Segment, micro: MicroBatch) -> dict[str, Tensor]:
        if part.stage.first not in micro.commons:
            micro.commons[part.stage.first] = self._commons(part, micro)
        graph, commons = part.generated.sharded[index], micro.commons[part.stage.first]
        buffers = micro.before.get(index, self.buffers)
        values = {name: self.exchange.value(name, part, micro) for name in dict.fromkeys(segment.inputs)}
        found = dict(zip((v.name for v in graph.inputs), (values[n] for n in segment.inputs), strict=True))
        found |= dict(zip((v.name for v in graph.commons), (commons[n] for n in segment.commons), strict=True))
        found |= dict(zip((v.name for v in graph.buffers), (buffers[n] for n in segment.buffers), strict=True))
        return found | self._params(part, index, segment)

    def _commons(self, part: Part, micro: MicroBatch) -> dict[str, Tensor]:
        """Of one stage: its part of the batch, and what its part of the prologue makes."""
        prologue, stage = self._generated(part, micro).prologue, part.stage
        batch = self.batches.of_stage(stage.first, micro.number, micro.batch)
        with random_state(micro.random):
            found = run_graph(prologue, batch | self.buffers, self.device)
        names = stage_commons(self.program, stage.first, stage.end)
        return batch | dict(zip(names, (found[name] for name in prologue.outputs), strict=True))

    def _backward(self, kind: str, part: Part, index: int, segment: Segment, micro: MicroBatch) -> None:
        pair = self._pair(part, index, micro)
        local = pair.graph.values()
        incoming = [
            self._gradient(name, part, micro)
            for name, output in zip(segment.outputs, pair.graph.outputs, strict=True)
            if local[output].grad
        ]
        params, saved = self._params(part, index, segment), micro.saved.pop(index)
        if index in micro.away:
            saved = self.host.back(saved, micro.away.pop(index))
        weights: dict[str, Tensor | None] = {}
        again = self._recomputed(index)
        if kind == "backward_input":
            made = self._pieces_of(pair, again)
            inputs, micro.rest[index] = made.input_half(saved, params, incoming)
        elif again:
            inputs, weights = self._pieces_of(pair, True).backward(saved, params, incoming)
        else:
            inputs, weights = pair.backward(saved, params, incoming)
        names = dict(zip((value.name for value in pair.graph.inputs), segment.inputs, strict=True))
        for key, gradient in inputs.items():
            if gradient is not None:
                place = (names[key], part.stage.first)
                found = micro.gradients.get(place)
                micro.gradients[place] = gradient if found is None else found + gradient
        if kind == "backward":
            self._add(part, index, segment, weights, [*inputs.values(), *incoming])

    def _add(
        self,
        part: Part,
        index: int,
        segment: Segment,
        gradients: Mapping[str, Tensor | None],
        others: Sequence[Tensor | None],
    ) -> None:
        """Two parameters, or one and an input, may be handed the same gradient: each gets its own."""
        graph = part.generated.pairs[index].graph
        full = dict(zip((value.name for value in graph.params), segment.params, strict=True))
        seen = {_storage(tensor) for tensor in others if tensor is not None}
        for key, gradient in gradients.items():
            if gradient is None:
                continue
            own = _storage(gradient)
            part.store.add_gradient(full[key], gradient.clone() if own in seen else gradient)
            seen.add(own)
        part.store.scatter(index)

    def _recomputed(self, index: int) -> bool:
        return index in self.exchange.recomputed

    def _pieces_of(self, pair: Pair, restored: bool) -> Pieces | WholePieces:
        key = (id(pair), restored)
        if key not in self._pieces:
            self._pieces[key] = pieces(pair, restored=restored, compiled=self.parts[0].compiled)
        return self._pieces[key]

    def _params(self, part: Part, index: int, segment: Segment) -> dict[str, Tensor]:
        graph = part.generated.sharded[index]
        part.store.ready(index)
        return {v.name: part.store.compute(name) for v, name in zip(graph.params, segment.params, strict=True)}

    def _gradient(self, name: str, part: Part, micro: MicroBatch) -> Tensor:
        if name == self.program.loss:
            assert micro.loss is not None
            return torch.full_like(micro.loss, micro.weight)
        return self.exchange.gradient(name, part, micro)

    def _counted(self) -> AbstractContextManager[None]:
        """Where bytes are counted: all that ops make, besides parameters; the batch and the buffers aside."""
        if not self.counts:
            return nullcontext()
        stored = [tensor for part in self.parts for tensor in part.store.locals.values()]
        given = [tensor for micro in self.micro for tensor in micro.batch.values()]
        return self.live.counting(stored, [*given, *self.buffers.values(), *self.host.waiting()])

    def _count(self) -> None:
        self.live.note(local for part in self.parts for local in part.store.reduced_gradients())
        found = {_storage(tensor): tensor for micro in self.micro for tensor in micro.tensors()}
        known = {_storage(t) for part in self.parts for t in (*part.store.locals.values(), *part.store.copies.values())}
        known |= {_storage(t) for micro in self.micro for t in micro.batch.values()}
        known |= {_storage(t) for t in self.buffers.values()}
        own = sum(t.untyped_storage().nbytes() for place, t in found.items() if place not in known)
        self.held_bytes = max(self.held_bytes, own + self.exchange.bytes_under_way())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
